package bundle

import (
	"bytes"
	"encoding/pem"
	"strings"
)

// openBlock is a block whose BEGIN marker has been seen and whose end has not.
type openBlock struct {
	position int    // counted from 1
	start    int    // offset of its BEGIN marker
	label    string // between BEGIN and the dashes
	broken   bool   // already reported: what follows belongs to the same fault
}

// scanner walks over the lines of a bundle and tells frames from text. It accepts exactly the frames that encoding/pem
// accepts, and reports every trace of another.
type scanner struct {
	data     []byte
	at       int // offset of the line at hand
	counted  int // offset up to which lines have been counted, and
	lines    int // how many there were
	position int // of the latest block
	open     *openBlock
	inFault  bool // the line before was a reported stretch, which this one may continue
	markers  bool // anything like a marker was seen
	findings []Finding
	// block receives each block that is delimited properly.
	block func(position int, label string, text []byte)
}

// scan walks over the whole text, in one pass.
func (s *scanner) scan() {
	for s.at < len(s.data) {
		if s.open != nil && !s.skipContent() {
			break
		}
		end := len(s.data)
		line := s.data[s.at:]
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			end = s.at + i + 1
			line = bytes.TrimSuffix(line[:i], []byte("\r"))
		}
		s.see(end, bytes.TrimRight(line, " \t"))
		s.at = end
	}
	if s.open != nil {
		s.breakOpen("its END line is missing: the block is cut short")
	}
}

// skipContent goes to the next line of a block that is more than content: one with a dash in it. (Decoding judges the
// content.) It is false where there is none.
func (s *scanner) skipContent() bool {
	i := bytes.IndexByte(s.data[s.at:], '-')
	if i < 0 {
		return false
	}
	s.at += bytes.LastIndexByte(s.data[s.at:s.at+i], '\n') + 1
	return true
}

// line is the number of the line at hand, counted from 1.
func (s *scanner) line() int {
	s.lines += bytes.Count(s.data[s.counted:s.at], []byte("\n"))
	s.counted = s.at
	return s.lines + 1
}

// see takes the line at hand, trimmed as encoding/pem trims it; end is where the next begins.
func (s *scanner) see(end int, line []byte) {
	if label, found := marker(line, beginPrefix); found {
		s.begin(label)
		return
	}
	if label, found := marker(line, endPrefix); found {
		s.end(end, label)
		return
	}
	if looksLikeMarker(line) {
		s.almost(line)
		return
	}
	if s.open == nil {
		s.text(line)
	}
}

// marker returns the label of a marker line as encoding/pem reads it. A label with dashes in it is two markers in one.
func marker(line, prefix []byte) (label string, found bool) {
	rest, found := bytes.CutPrefix(line, prefix)
	if !found {
		return "", false
	}
	rest, found = bytes.CutSuffix(rest, markerSuffix)
	if string(rest) == blockType { // by far the most common, and worth no allocation
		return blockType, found
	}
	return string(rest), found && !bytes.Contains(rest, []byte("--"))
}

// begin takes a BEGIN marker.
func (s *scanner) begin(label string) {
	if s.open != nil {
		s.breakOpen("its END line is missing before the next BEGIN on line %d: the block is cut short", s.line())
	}
	s.start(s.at, label)
}

// start opens a block.
func (s *scanner) start(start int, label string) {
	s.markers, s.inFault = true, false
	s.position++
	s.open = &openBlock{position: s.position, start: start, label: label}
	if label != blockType && privateKeyLabel(label) {
		s.report(blockFinding(PrivateKey, s.position, privateKeyMessage))
	}
}

// end takes an END marker.
func (s *scanner) end(end int, label string) {
	open := s.open
	switch {
	case open == nil:
		s.start(end, label)
		s.breakOpen("an END line on line %d has no BEGIN line before it", s.line())
	case open.broken:
	case open.label != label:
		s.breakOpen("its END line, line %d, names another type than its BEGIN line", s.line())
	default:
		s.block(open.position, open.label, s.data[open.start:end])
	}
	s.open = nil
}

// almost takes a line that a human takes for a marker and a parser does not. A block that is lost this way goes on until
// something ends it.
func (s *scanner) almost(line []byte) {
	folded := fold(line)
	if s.open == nil {
		s.start(s.at, folded)
	}
	s.breakOpen("line %d is not a marker as parsers read one: %s", s.line(), markerFault(line))
	if !strings.Contains(folded, "BEGIN") {
		s.open = nil
	}
}

// text takes a line outside of blocks.
func (s *scanner) text(line []byte) {
	var fault string
	switch {
	case len(line) == 0:
	case bytes.IndexByte(line, 0) >= 0:
		fault = "binary data"
	case holdsBase64(line):
		fault = "base64"
	}
	if fault != "" && !s.inFault {
		s.report(finding(BrokenPEM, "line %d, outside of any block, holds %s: part of a block that has lost its markers; "+
			"write the whole bundle anew", s.line(), fault))
	}
	s.inFault = fault != ""
}

// breakOpen reports the open block as broken, once.
func (s *scanner) breakOpen(format string, args ...any) {
	if !s.open.broken {
		s.report(blockFinding(BrokenPEM, s.open.position, format+"; write this block anew", args...))
	}
	s.open.broken = true
}

// report notes a finding.
func (s *scanner) report(f Finding) { s.findings = append(s.findings, f) }

// markerFault says what is wrong with a line that was meant as a marker.
func markerFault(line []byte) string {
	folded := fold(line)
	switch {
	case bytes.Contains(line, []byte(`\n`)):
		return `its line breaks are the two characters \n`
	case bytes.IndexByte(line, '\r') >= 0:
		return "its line ends are carriage returns alone"
	case strings.Contains(folded, "BEGIN") && strings.Contains(folded, "END "):
		return "a BEGIN and an END share it"
	case bytes.ContainsFunc(line, invisible):
		return "it holds an invisible character, such as a byte-order mark"
	case !isASCII(line):
		return "its dashes or spaces are not the plain ones of ASCII"
	case line[0] == ' ' || line[0] == '\t':
		return "it is indented"
	case bytes.Contains(line, markerSuffix) && line[0] != '-':
		return "something stands before it"
	}
	return "it needs capitals, exactly five dashes on either side, and nothing else"
}

// decode frames one block with encoding/pem itself, the very code that the kubelet uses. It returns nil where that would
// skip the block: then all of the text is left over.
func decode(text []byte) *pem.Block {
	block, rest := pem.Decode(text)
	if len(rest) > 0 {
		return nil
	}
	return block
}

// privateKeyMessage is what an admin must know about a private key in a ConfigMap.
const privateKeyMessage = "a private key: everyone who can read this bundle has it now, so treat it as compromised, " +
	"replace it, and take it out of the bundle"

// privateKeyLabel says whether a block of this type holds a private key, encrypted or not (RFC 7468 sections 10 and 11,
// and the older labels of OpenSSL and OpenSSH).
func privateKeyLabel(label string) bool {
	return strings.Contains(strings.ReplaceAll(fold([]byte(label)), " ", ""), "PRIVATEKEY")
}
