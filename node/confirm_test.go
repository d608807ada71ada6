package node_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/node"
)

// subjects returns the names in a bundle.
func subjects(t *testing.T, pem []byte) [][]byte {
	t.Helper()
	parsed, _ := bundle.Parse(pem)
	var names [][]byte
	for _, certificate := range parsed.Certificates {
		names = append(names, certificate.X509.RawSubject)
	}
	return names
}

func TestWhatTheKubeletSaysIsReportedAndNoMore(t *testing.T) {
	old, snapshot := canonical(t, authority(t, "old")), canonical(t, authority(t, "old"), authority(t, "new"))
	before, after := subjects(t, old), subjects(t, snapshot)
	refused := errors.New("connection refused")
	type answer struct {
		names [][]byte
		err   error
	}
	for _, c := range []struct {
		name    string
		answers []answer // the last one is repeated
		want    node.Confirmation
		code    node.ExitCode
		detail  string
	}{
		{"other names before, the right ones after", []answer{{before, nil}, {after, nil}}, node.Confirmed, node.ExitOK, ""},
		{"the right ones after a minute", append(slices.Repeat([]answer{{before, nil}}, 13), answer{slices.Concat(after, after), nil}),
			node.Confirmed, node.ExitOK, ""},
		{"the kubelet restarts meanwhile", []answer{{before, nil}, {nil, refused}, {after, nil}}, node.Confirmed, node.ExitOK, ""},
		{"other names to the end", []answer{{before, nil}}, node.NotYet, node.ExitNotConfirmed, ""},
		{"more names than the file has", []answer{{before, nil}, {append(slices.Clone(after), []byte("x")), nil}}, node.NotYet,
			node.ExitNotConfirmed, ""},
		{"the right names all along", []answer{{after, nil}}, node.CannotTell, node.ExitOK, "same names before"},
		{"no answer before", []answer{{nil, refused}, {after, nil}}, node.CannotTell, node.ExitOK, "not known whether it did before"},
		{"no answer at all", []answer{{nil, refused}}, node.CannotTell, node.ExitOK, "connection refused"},
		{"no answer in the end", []answer{{before, nil}, {nil, refused}}, node.CannotTell, node.ExitOK, "connection refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			write(t, s.destination, old)
			asked := 0
			s.lander.Ask = func(context.Context, netip.AddrPort) ([][]byte, error) {
				given := c.answers[min(asked, len(c.answers)-1)]
				asked++
				return given.names, given.err
			}
			task := s.mount(t, snapshot)
			task.Confirm, task.ConfirmTimeout = netip.MustParseAddrPort("127.0.0.1:10250"), 2*time.Minute
			got := s.land(task)
			wantResult(t, got, node.Replaced, c.code)
			if got.Confirmation != c.want || !strings.Contains(got.Detail, c.detail) {
				t.Errorf("got %q (%s), want %q (%s)", got.Confirmation, got.Detail, c.want, c.detail)
			}
			if s.slept > task.ConfirmTimeout {
				t.Errorf("asked for %v", s.slept)
			}
			wantFile(t, s.destination, snapshot)
		})
	}
}

// serve starts a TLS server and returns its address.
func serve(t *testing.T, config *tls.Config) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = tls.Server(connection, config).Handshake()
			_ = connection.Close()
		}
	}()
	return netip.MustParseAddrPort(listener.Addr().String())
}

func ask(t *testing.T, address netip.AddrPort) ([][]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	return node.AskKubelet(ctx, address)
}

func TestTheAdvertisedNamesAreReadFromARealTLSServer(t *testing.T) {
	many := make([][]byte, 0, 400)
	for i := range cap(many) {
		many = append(many, authority(t, strings.Repeat("x", 100)+string(rune('A'+i%26))+string(rune('a'+i/26))))
	}
	for _, c := range []struct {
		name        string
		authorities [][]byte
	}{
		{"one", [][]byte{authority(t, "one")}},
		{"several", [][]byte{authority(t, "one"), authority(t, "two"), authority(t, "three")}},
		{"more than a record holds", many},
	} {
		for kind, certificate := range serverCertificates(t) {
			t.Run(c.name+", "+kind, func(t *testing.T) {
				pool := x509.NewCertPool()
				want := subjects(t, slices.Concat(c.authorities...))
				pool.AppendCertsFromPEM(slices.Concat(c.authorities...))
				got, err := ask(t, serve(t, &tls.Config{
					Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert, ClientCAs: pool,
					MinVersion: tls.VersionTLS12,
				}))
				if err != nil {
					t.Fatal(err)
				}
				if !slices.EqualFunc(got, want, bytes.Equal) {
					t.Errorf("got %d names, want %d", len(got), len(want))
				}
			})
		}
	}
}

func TestAServerThatShowsNoListIsNotAskedAgain(t *testing.T) {
	snapshot := canonical(t, authority(t, "one"))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(snapshot)
	certificate := serverCertificates(t)["ECDSA"]
	for _, c := range []struct {
		name   string
		config *tls.Config
		want   string
	}{
		{"it asks for no certificate", &tls.Config{MinVersion: tls.VersionTLS12}, "asks for no client certificate"},
		{"it speaks TLS 1.3 alone", &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert, ClientCAs: pool},
			"refuses TLS 1.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			s.lander.Ask = node.AskKubelet
			c.config.Certificates = []tls.Certificate{certificate}
			task := s.mount(t, snapshot)
			task.Confirm, task.ConfirmTimeout = serve(t, c.config), time.Hour
			got := s.land(task)
			wantResult(t, got, node.Created, node.ExitOK)
			if got.Confirmation != node.CannotTell || !strings.Contains(got.Detail, c.want) || s.slept > 0 {
				t.Errorf("got %q (%s) after %v", got.Confirmation, got.Detail, s.slept)
			}
		})
	}
}

func TestAServerThatSpeaksSomethingElseIsAnErrorAndNoPanic(t *testing.T) {
	record := func(kind byte, content ...byte) []byte {
		return append([]byte{kind, 3, 3, byte(len(content) >> 8), byte(len(content))}, content...)
	}
	for name, answer := range map[string][]byte{
		"nothing":                          nil,
		"HTTP":                             []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"half a header":                    {22, 3},
		"half a record":                    {22, 3, 3, 0, 10, 13},
		"a record that is too long":        {22, 3, 3, 0xff, 0xff},
		"an alert without content":         record(21),
		"an empty request":                 record(22, 13, 0, 0, 0),
		"a request that is cut":            record(22, 13, 0, 0, 3, 1, 1, 0),
		"names that are cut":               record(22, 13, 0, 0, 8, 1, 1, 0, 0, 0, 2, 0, 9),
		"bytes after the names":            record(22, 13, 0, 0, 7, 1, 1, 0, 0, 0, 0, 9),
		"a message without end":            slices.Repeat(record(22, append([]byte{11, 0xff, 0xff, 0xff}, make([]byte, 1<<14)...)...), 80),
		"nothing but endless empty frames": slices.Repeat(record(22), 1000),
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = connection.Write(answer)
				_ = connection.Close()
			}()
			if names, err := ask(t, netip.MustParseAddrPort(listener.Addr().String())); err == nil {
				t.Errorf("got %d names, want an error", len(names))
			}
		})
	}
}
