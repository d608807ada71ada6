package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// The parts of an SPDX 2.3 document that are used here (https://spdx.github.io/spdx-spec/v2.3/).
type (
	spdxDocument struct {
		SPDXVersion       string             `json:"spdxVersion"`
		DataLicense       string             `json:"dataLicense"`
		SPDXID            string             `json:"SPDXID"`
		Name              string             `json:"name"`
		DocumentNamespace string             `json:"documentNamespace"`
		CreationInfo      spdxCreation       `json:"creationInfo"`
		Packages          []spdxPackage      `json:"packages"`
		Relationships     []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		Name             string          `json:"name"`
		SPDXID           string          `json:"SPDXID"`
		Version          string          `json:"versionInfo,omitempty"`
		DownloadLocation string          `json:"downloadLocation"`
		FilesAnalyzed    bool            `json:"filesAnalyzed"`
		LicenseConcluded string          `json:"licenseConcluded"`
		Checksums        []spdxChecksum  `json:"checksums,omitempty"`
		ExternalRefs     []spdxReference `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const (
	spdxNone       = "NOASSERTION"
	spdxDocumentID = "SPDXRef-DOCUMENT"
	spdxProgramID  = "SPDXRef-program"
)

// sbom lists what a Go program is made of, from what the linker wrote into it: the modules that are in it, rather than
// those that go.mod names.
func sbom(file string, program []byte, version string, created time.Time) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return nil, fmt.Errorf("read the build information of %s: %w", file, err)
	}
	sum := sha256.Sum256(program)
	digest := hex.EncodeToString(sum[:])
	document := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: spdxDocumentID, Name: file,
		DocumentNamespace: "https://spdx.org/spdxdocs/" + info.Main.Path + "/" + file + "-" + digest,
		CreationInfo:      spdxCreation{Created: created.UTC().Format(time.RFC3339), Creators: []string{"Tool: hack/image"}},
		Packages: []spdxPackage{{
			Name: file, SPDXID: spdxProgramID, Version: version, DownloadLocation: spdxNone, LicenseConcluded: "Apache-2.0",
			Checksums: []spdxChecksum{{Algorithm: "SHA256", Value: digest}},
		}},
		Relationships: []spdxRelationship{{Element: spdxDocumentID, Type: "DESCRIBES", Related: spdxProgramID}},
	}
	document.add("stdlib", strings.TrimPrefix(info.GoVersion, "go"))
	for _, module := range info.Deps {
		used := replaced(module)
		document.add(used.Path, used.Version)
	}
	return json.MarshalIndent(document, "", "  ")
}

// replaced returns the module that was built in.
func replaced(module *debug.Module) *debug.Module {
	if module.Replace != nil {
		return module.Replace
	}
	return module
}

// add lists a Go module (package URL specification, type golang).
func (d *spdxDocument) add(path, version string) {
	id := "SPDXRef-" + strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, path)
	d.Packages = append(d.Packages, spdxPackage{
		Name: path, SPDXID: id, Version: version, DownloadLocation: spdxNone, LicenseConcluded: spdxNone,
		ExternalRefs: []spdxReference{{
			Category: "PACKAGE-MANAGER", Type: "purl", Locator: "pkg:golang/" + path + "@" + version,
		}},
	})
	d.Relationships = append(d.Relationships, spdxRelationship{Element: spdxProgramID, Type: "DEPENDS_ON", Related: id})
}
