package main

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	programMode   = 0o555
	directoryMode = 0o755
)

// linuxLayer returns a layer with the program in the root directory.
func linuxLayer(name string, program []byte, modified time.Time) (v1.Layer, error) {
	return layer([]*tar.Header{{Name: name, Mode: programMode, Size: int64(len(program)), ModTime: modified}}, program)
}

// windowsLayer returns a layer as Windows unpacks it: files under Files, registry hives under Hives, attributes and the
// security descriptor in PAX records (github.com/Microsoft/go-winio backuptar; moby/buildkit util/winlayers writes the
// same two directories).
func windowsLayer(name string, program []byte, modified time.Time) (v1.Layer, error) {
	const directoryAttribute, archiveAttribute = "16", "32" // FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_ARCHIVE
	directory := func(name string) *tar.Header {
		return &tar.Header{
			Name: name, Typeflag: tar.TypeDir, Mode: directoryMode, ModTime: modified, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"MSWINDOWS.fileattr": directoryAttribute},
		}
	}
	return layer([]*tar.Header{directory("Files"), directory("Hives"), {
		Name: "Files/" + name, Mode: programMode, Size: int64(len(program)), ModTime: modified, Format: tar.FormatPAX,
		PAXRecords: map[string]string{
			"MSWINDOWS.fileattr": archiveAttribute,
			"MSWINDOWS.rawsd":    base64.StdEncoding.EncodeToString(administratorsOnly()),
		},
	}}, program)
}

// layer returns a layer with the entries, of which the last has the content.
func layer(entries []*tar.Header, content []byte) (v1.Layer, error) {
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, entry := range entries {
		if err := writer.WriteHeader(entry); err != nil {
			return nil, err
		}
	}
	if _, err := writer.Write(content); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

// administratorsOnly returns the self-relative security descriptor O:BAG:SYD:(A;;FA;;;SY)(A;;FA;;;BA): the program
// belongs to Administrators, and they and SYSTEM alone may use it (MS-DTYP, sections 2.4.6, 2.4.5, 2.4.4.2 and 2.4.2).
func administratorsOnly() []byte {
	const (
		revision    = 1
		control     = 0x8004 // SE_SELF_RELATIVE, SE_DACL_PRESENT
		aclRevision = 2
		allowed     = 0        // ACCESS_ALLOWED_ACE_TYPE
		fullControl = 0x1f01ff // FILE_ALL_ACCESS
		header      = 20
	)
	sid := func(subAuthorities ...uint32) []byte { // of the NT authority, 5
		b := []byte{revision, byte(len(subAuthorities)), 0, 0, 0, 0, 0, 5}
		for _, sub := range subAuthorities {
			b = binary.LittleEndian.AppendUint32(b, sub)
		}
		return b
	}
	system, administrators := sid(18), sid(32, 544)
	var entries []byte
	for _, holder := range [][]byte{system, administrators} {
		entries = append(entries, allowed, 0)
		entries = binary.LittleEndian.AppendUint16(entries, uint16(8+len(holder)))
		entries = binary.LittleEndian.AppendUint32(entries, fullControl)
		entries = append(entries, holder...)
	}
	acl := []byte{aclRevision, 0}
	acl = binary.LittleEndian.AppendUint16(acl, uint16(8+len(entries)))
	acl = binary.LittleEndian.AppendUint32(acl, 2) // two entries, and two bytes of nothing
	acl = append(acl, entries...)

	descriptor := []byte{revision, 0}
	descriptor = binary.LittleEndian.AppendUint16(descriptor, control)
	for _, offset := range []int{header, header + len(administrators), 0, header + len(administrators) + len(system)} {
		descriptor = binary.LittleEndian.AppendUint32(descriptor, uint32(offset)) // owner, group, SACL, DACL
	}
	descriptor = append(descriptor, administrators...)
	descriptor = append(descriptor, system...)
	return append(descriptor, acl...)
}
