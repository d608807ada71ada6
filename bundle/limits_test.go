package bundle_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"strings"
	"testing"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

// named makes CAs, with one key, whose subjects take so many bytes in a TLS handshake, the two of the length included.
func named(t testing.TB, sizes ...int) []bundletest.CA {
	t.Helper()
	key, lengths := bundletest.NewKey(t), map[int]int{}
	of := func(length int) bundletest.CA {
		return bundletest.NewCA(t, bundletest.Spec{Name: strings.Repeat("x", length), Key: key})
	}
	cas := make([]bundletest.CA, 0, len(sizes))
	for _, size := range sizes {
		if lengths[size] == 0 {
			lengths[size] = size - 40 // more than the rest of a name takes, which depends on the length
			for len(of(lengths[size]).Certificate.RawSubject)+2 < size {
				lengths[size]++
			}
		}
		ca := of(lengths[size])
		if got := len(ca.Certificate.RawSubject) + 2; got != size {
			t.Fatalf("a name takes %d bytes, want %d", got, size)
		}
		cas = append(cas, ca)
	}
	return cas
}

// answers says whether a server that asks for client certificates of the CAs, as a kubelet does, gets through a handshake.
func answers(t *testing.T, version uint16, cas []bundletest.CA) bool {
	t.Helper()
	signer := bundletest.Named(t, "serving")
	key := bundletest.NewKey(t)
	serving := signer.Issue(t, x509.Certificate{DNSNames: []string{"node"}}, key)
	trusted := x509.NewCertPool()
	for _, ca := range cas {
		trusted.AddCert(ca.Certificate)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	failed := make(chan error, 1)
	go func() {
		there, err := listener.Accept()
		if err != nil {
			failed <- err
			return
		}
		defer there.Close()
		failed <- tls.Server(there, &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{serving.Raw}, PrivateKey: key}},
			ClientAuth:   tls.RequestClientCert, ClientCAs: trusted, MinVersion: version, MaxVersion: version,
		}).HandshakeContext(t.Context())
	}()
	here, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	err = tls.Client(here, &tls.Config{MinVersion: version, InsecureSkipVerify: true}).HandshakeContext(t.Context()) //nolint:gosec // the server is not in question
	here.Close()
	return <-failed == nil && err == nil
}

func TestMoreNamesThanTLSCarriesAreRefused(t *testing.T) {
	most := slices.Repeat([]int{1000}, 65)
	for _, c := range []struct {
		sizes   []int
		allowed bool
	}{
		{most, true},
		{append(most[:64:64], 1001), false},
		{append(most[:64:64], 900, 100), true},
		{append(most[:64:64], 900, 101), false},
	} {
		cas := named(t, c.sizes...)
		v := bundle.Review(nil, bundletest.Bundle(cas...), bundletest.At(), nil)
		if v.Allowed != c.allowed || !v.Allowed && !slices.Equal(codes(v.Reasons), []bundle.Code{bundle.TooManyCAs}) {
			t.Errorf("%d names: allowed %v with %v, want %v", len(cas), v.Allowed, v.Reasons, c.allowed)
		}
		// A kubelet drops duplicates.
		if w := bundle.Review(nil, slices.Concat(cas[0].PEM, bundletest.Bundle(cas...)), bundletest.At(), nil); w.Allowed != c.allowed {
			t.Errorf("%d names and one of them again: allowed %v with %v, want %v", len(cas), w.Allowed, w.Reasons, c.allowed)
		}
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			if c.allowed && !answers(t, version, cas) {
				t.Errorf("%d names are allowed, and with %s no handshake succeeds", len(cas), tls.VersionName(version))
			}
		}
	}
	// So that a handshake can fail at all.
	if answers(t, tls.VersionTLS13, named(t, append(most, 500)...)) {
		t.Error("TLS carries more than 65,500 bytes of names")
	}
}

func TestMoreCAsOfOneSubjectThanAreTriedAreRefused(t *testing.T) {
	const most = 100
	cas := make([]bundletest.CA, 0, most+3)
	for range cap(cas) {
		cas = append(cas, bundletest.Named(t, "same"))
	}
	others := bundletest.Bundle(bundletest.Named(t, "other"), bundletest.Named(t, "another"))
	key := bundletest.NewKey(t)
	for _, n := range []int{most - 1, most, most + 1, most + 2, most + 3} {
		v := bundle.Review(nil, slices.Concat(cas[0].PEM, bundletest.Bundle(cas[:n]...), others), bundletest.At(), nil)
		if v.Allowed != (n <= most) {
			t.Errorf("%d CAs of one subject: allowed %v with %v", n, v.Allowed, v.Reasons)
		}
		if n > most && (len(v.Reasons) != 1 || v.Reasons[0].Code != bundle.TooManyCAs || v.Reasons[0].Position != most+2) {
			t.Errorf("%d CAs of one subject: reasons %v, want one, at the first that is too many", n, v.Reasons)
		}
		trusted := x509.NewCertPool()
		for _, ca := range cas[:n] {
			trusted.AddCert(ca.Certificate)
		}
		client := cas[n-1].Issue(t, x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, key)
		_, err := client.Verify(x509.VerifyOptions{Roots: trusted, CurrentTime: bundletest.At(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if v.Allowed != (err == nil) {
			t.Errorf("%d CAs of one subject: allowed %v, and the last one's client meets %v", n, v.Allowed, err)
		}
	}
}
