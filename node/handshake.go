package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
)

// The kubelet's list of CAs is read out of the first messages of a TLS 1.2 handshake, in which the server's
// CertificateRequest is not encrypted (RFC 5246, sections 7.3 and 7.4.4). crypto/tls would add 1.3 MiB to a program that
// is pulled by every node; what is needed of it is one message out and one in. Nothing is agreed upon and nobody is
// trusted: the connection is closed after the list.

// errNoList says that this kubelet will never show a list to such a question, so that asking again is no use.
var errNoList = errors.New("the kubelet shows no list of CAs")

// Types of records and handshake messages (RFC 5246, sections 6.2.1 and 7.4).
const (
	recordAlert     = 21
	recordHandshake = 22

	messageClientHello        = 1
	messageCertificateRequest = 13
	messageServerHelloDone    = 14

	recordHeader  = 5
	messageHeader = 4

	// longestRecord and longestFlight bound what is read: 2^14+2048 for one record (RFC 5246, section 6.2.3), and a
	// certificate chain beside the longest possible list of CAs for all of them.
	longestRecord = 1<<14 + 2048
	longestFlight = 1 << 20
)

// AskKubelet returns the DER-encoded subjects of the CAs that the TLS server at the address asks clients for. An address
// without a name needs no resolver, which would be another quarter of a megabyte.
func AskKubelet(ctx context.Context, address netip.AddrPort) ([][]byte, error) {
	connection, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(address))
	if err != nil {
		return nil, err
	}
	defer connection.Close() //nolint:errcheck // nothing of ours is in flight
	if deadline, ok := ctx.Deadline(); ok {
		if err := connection.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	if _, err := connection.Write(clientHello()); err != nil {
		return nil, err
	}
	return readAuthorities(connection)
}

// clientHello returns a TLS 1.2 ClientHello in its record (RFC 5246, section 7.4.1.2).
func clientHello() []byte {
	suites := []byte{
		0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x2c, 0xc0, 0x30, // ECDHE with AES-GCM (RFC 5289)
		0xcc, 0xa9, 0xcc, 0xa8, // ECDHE with ChaCha20-Poly1305 (RFC 7905)
		0xc0, 0x09, 0xc0, 0x13, 0xc0, 0x0a, 0xc0, 0x14, // ECDHE with AES-CBC (RFC 8422)
		0x00, 0x9c, 0x00, 0x9d, 0x00, 0x2f, 0x00, 0x35, // RSA with AES (RFC 5288, RFC 5246)
	}
	extensions := []byte{
		0x00, 0x0a, 0, 10, 0, 8, 0x00, 0x1d, 0x00, 0x17, 0x00, 0x18, 0x00, 0x19, // groups: X25519, P-256, P-384, P-521
		0x00, 0x0b, 0, 2, 1, 0, // points: uncompressed
		0x00, 0x0d, 0, 22, 0, 20, // signatures: ECDSA, RSA-PSS, Ed25519, RSA
		0x04, 0x03, 0x05, 0x03, 0x06, 0x03, 0x08, 0x04, 0x08, 0x05, 0x08, 0x06, 0x08, 0x07, 0x04, 0x01, 0x05, 0x01, 0x06, 0x01,
		0x00, 0x17, 0, 0, // extended master secret (RFC 7627): servers in FIPS mode insist on it
		0xff, 0x01, 0, 1, 0, // secure renegotiation (RFC 5746)
	}
	const version = 0x0303 // TLS 1.2
	body := binary.BigEndian.AppendUint16(nil, version)
	body = append(body, make([]byte, 32+1)...) // a random of zeros, as no secret depends on it, and no session
	body = binary.BigEndian.AppendUint16(body, uint16(len(suites)))
	body = append(body, suites...)
	body = append(body, 1, 0) // no compression
	body = binary.BigEndian.AppendUint16(body, uint16(len(extensions)))
	body = append(body, extensions...)

	hello := []byte{recordHandshake, 0x03, 0x01}
	hello = binary.BigEndian.AppendUint16(hello, uint16(messageHeader+len(body)))
	hello = binary.BigEndian.AppendUint32(hello, messageClientHello<<24|uint32(len(body)))
	return append(hello, body...)
}

// readAuthorities reads the server's first flight up to the CertificateRequest and returns the names in that.
func readAuthorities(from io.Reader) ([][]byte, error) {
	var flight []byte
	for len(flight) < longestFlight {
		for len(flight) >= messageHeader {
			header := binary.BigEndian.Uint32(flight)
			kind, length := header>>24, int(header&0xffffff)
			if len(flight) < messageHeader+length {
				break
			}
			switch kind {
			case messageCertificateRequest:
				return parseAuthorities(flight[messageHeader : messageHeader+length])
			case messageServerHelloDone:
				return nil, fmt.Errorf("%w: it asks for no client certificate", errNoList)
			}
			flight = flight[messageHeader+length:]
		}
		record, err := readRecord(from)
		if err != nil {
			return nil, err
		}
		flight = append(flight, record...)
	}
	return nil, errors.New("the server's handshake has no end")
}

// readRecord returns the content of one handshake record.
func readRecord(from io.Reader) ([]byte, error) {
	header := make([]byte, recordHeader)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint16(header[3:]))
	if header[0] != recordHandshake && header[0] != recordAlert || length > longestRecord {
		return nil, errors.New("the server does not speak TLS")
	}
	record := make([]byte, length)
	if _, err := io.ReadFull(from, record); err != nil {
		return nil, err
	}
	if header[0] == recordAlert && length >= 2 {
		return nil, fmt.Errorf("%w: it refuses TLS 1.2 with alert %d", errNoList, record[1])
	}
	return record, nil
}

// parseAuthorities returns the names in a CertificateRequest: certificate types behind one byte of length, signature
// algorithms behind two, then the names behind two, each behind two of its own (RFC 5246, section 7.4.4).
func parseAuthorities(message []byte) ([][]byte, error) {
	errBroken := errors.New("the server's certificate request is broken")
	if len(message) < 1 {
		return nil, errBroken
	}
	_, rest, ok := cutVector(message[1:], int(message[0]))
	if ok {
		_, rest, ok = cutVector16(rest)
	}
	var list []byte
	if ok {
		list, rest, ok = cutVector16(rest)
	}
	if !ok || len(rest) > 0 {
		return nil, errBroken
	}
	var authorities [][]byte
	for len(list) > 0 {
		var name []byte
		if name, list, ok = cutVector16(list); !ok {
			return nil, errBroken
		}
		authorities = append(authorities, name)
	}
	return authorities, nil
}

// cutVector16 cuts off a vector behind a length of two bytes.
func cutVector16(data []byte) (vector, rest []byte, ok bool) {
	if len(data) < 2 {
		return nil, nil, false
	}
	return cutVector(data[2:], int(binary.BigEndian.Uint16(data)))
}

func cutVector(data []byte, length int) (vector, rest []byte, ok bool) {
	if len(data) < length {
		return nil, nil, false
	}
	return data[:length], data[length:], true
}
