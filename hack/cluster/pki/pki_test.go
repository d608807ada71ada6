package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func authority(t *testing.T, lifetime time.Duration) *Authority {
	t.Helper()
	a, err := NewAuthority(filepath.Join(t.TempDir(), "ca"), "test", lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWhatAnAuthorityIssuesVerifiesAgainstIt(t *testing.T) {
	for name, hosts := range map[string][]string{"for a client": nil, "for a server": {"127.0.0.1", "localhost"}} {
		t.Run(name, func(t *testing.T) {
			a := authority(t, 0)
			path := filepath.Join(t.TempDir(), "sub", "leaf")
			if err := a.Issue(path, Request{CommonName: "leaf", Organizations: []string{"group"}, Hosts: hosts}); err != nil {
				t.Fatal(err)
			}
			pair, err := tls.LoadX509KeyPair(path+".crt", path+".key")
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(a.PEM())
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Errorf("as a client: %v", err)
			}
			_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"})
			if (err == nil) != (hosts != nil) {
				t.Errorf("as a server: %v", err)
			}
		})
	}
}

func TestACertificateEndsNoLaterThanItsAuthority(t *testing.T) {
	a := authority(t, time.Hour)
	path := filepath.Join(t.TempDir(), "leaf")
	if err := a.Issue(path, Request{CommonName: "leaf"}); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(path+".crt", path+".key")
	if err != nil {
		t.Fatal(err)
	}
	if pair.Leaf.NotAfter.After(a.Certificate().NotAfter) {
		t.Errorf("it ends at %s, its authority at %s", pair.Leaf.NotAfter, a.Certificate().NotAfter)
	}
}

func TestKeysAreForTheirOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca")
	if _, err := NewAuthority(path, "test", 0); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path + ".key")
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %o, want 600", info.Mode().Perm())
	}
}

func TestEnsureKeepsTheAuthorityThatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca")
	first, err := EnsureAuthority(path, "first")
	if err != nil {
		t.Fatal(err)
	}
	again, err := EnsureAuthority(path, "second")
	if err != nil {
		t.Fatal(err)
	}
	if !again.Certificate().Equal(first.Certificate()) {
		t.Error("it was replaced")
	}
}

func TestAMissingAuthorityIsToldFromABrokenOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca")
	if _, err := LoadAuthority(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if err := os.WriteFile(path+".crt", []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureAuthority(path, "name"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("broken: %v", err)
	}
}
