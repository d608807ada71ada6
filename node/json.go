package node

import (
	"strconv"
	"unicode/utf8"
)

// The result is the only JSON here, and it is only written. encoding/json would add 190 KiB to the program for that.

// appendJSON appends the result as encoding/json would write it.
func (r Result) appendJSON(b []byte) []byte {
	b = append(b, `{"outcome":`...)
	b = appendString(b, string(r.Outcome))
	b = append(b, `,"code":`...)
	b = strconv.AppendInt(b, int64(r.Code), 10)
	b = appendField(b, "meaning", r.Meaning)
	b = appendField(b, "destination", r.Destination)
	b = appendField(b, "sha256", r.SHA256)
	b = append(b, `,"certificates":`...)
	b = strconv.AppendInt(b, int64(r.Certificates), 10)
	b = append(b, `,"noticed":`...)
	b = strconv.AppendBool(b, r.Noticed)
	b = appendOptional(b, "confirmation", string(r.Confirmation))
	b = appendOptional(b, "detail", r.Detail)
	for i, removal := range r.Removed {
		b = append(b, opening("removed", i)...)
		b = append(b, `{"subject":`...)
		b = appendString(b, removal.Subject)
		b = appendField(b, "sha256", removal.SHA256)
		b = append(b, '}')
	}
	b = closing(b, len(r.Removed))
	b = append(b, `,"removedCount":`...)
	b = strconv.AppendInt(b, int64(r.RemovedCount), 10)
	for i, warning := range r.Warnings {
		b = append(b, opening("warnings", i)...)
		b = appendString(b, warning)
	}
	b = closing(b, len(r.Warnings))
	b = appendOptional(b, "error", r.Error)
	b = appendOptional(b, "hint", r.Hint)
	return append(b, '}')
}

// opening returns what comes before element i of a list.
func opening(name string, i int) string {
	if i == 0 {
		return `,"` + name + `":[`
	}
	return ","
}

// closing ends a list that has elements; one that has none was never begun.
func closing(b []byte, elements int) []byte {
	if elements == 0 {
		return b
	}
	return append(b, ']')
}

func appendOptional(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendField(b, name, value)
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	return appendString(b, value)
}

// appendString appends a JSON string (RFC 8259, section 7). What is not UTF-8 becomes the replacement character.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r == 0x7f || r == '\u2028' || r == '\u2029':
			b = append(b, '\\', 'u', hex[r>>12&0xf], hex[r>>8&0xf], hex[r>>4&0xf], hex[r&0xf])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
