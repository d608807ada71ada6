package node_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"io/fs"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/node"
)

// authority returns the PEM of a new CA.
func authority(t testing.TB, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// canonical returns the snapshot that holds the given CAs.
func canonical(t testing.TB, authorities ...[]byte) []byte {
	t.Helper()
	parsed, findings := bundle.Parse(slices.Concat(authorities...))
	if len(findings) > 0 {
		t.Fatalf("the test's own bundle is broken: %v", findings)
	}
	return parsed.Canonical()
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// clock is a clock that only sleeping moves on.
type clock struct {
	now     time.Time
	slept   time.Duration
	onSleep func()
}

func (c *clock) Now() time.Time { return c.now }

func (c *clock) Sleep(ctx context.Context, duration time.Duration) error {
	c.now = c.now.Add(duration)
	c.slept += duration
	if c.onSleep != nil {
		c.onSleep()
	}
	return ctx.Err()
}

// stage is a volume and a destination in directories of their own.
type stage struct {
	*clock
	lander      *node.Lander
	source      string
	destination string
}

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{clock: &clock{now: time.Now()}}
	s.source = filepath.Join(temporaryDirectory(t), "ca-bundle.crt")
	s.destination = filepath.Join(temporaryDirectory(t), "kubelet-ca.crt")
	s.lander = node.NewLander("", time.Minute)
	s.lander.Now, s.lander.Sleep = s.Now, s.Sleep
	s.lander.Ask = func(context.Context, netip.AddrPort) ([][]byte, error) {
		t.Error("the kubelet was asked")
		return nil, nil
	}
	return s
}

// inRealTime makes the landing wait for what other threads of the test do.
func (s *stage) inRealTime() { s.lander.Now, s.lander.Sleep = time.Now, node.Sleep }

// memory is a file system without a disk below it, on Linux: thousands of flushes to a busy disk take minutes.
const memory = "/dev/shm"

// temporaryDirectory returns a directory that ordinary users cannot write to, with no link on the way to it. It is not
// t.TempDir, because os.RemoveAll fails under Wine 8, which lacks deletion of POSIX semantics; os.Remove does not.
func temporaryDirectory(t testing.TB) string {
	t.Helper()
	parent := ""
	// Under Wine the path would be found too, and has no drive.
	if entry, err := os.Stat(memory); runtime.GOOS == "linux" && err == nil && entry.IsDir() {
		parent = memory
	}
	directory, err := os.MkdirTemp(parent, "landing")
	if err != nil {
		t.Fatal(err)
	}
	if directory, err = filepath.EvalSymlinks(directory); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var paths []string
		_ = filepath.WalkDir(directory, func(path string, _ fs.DirEntry, _ error) error {
			paths = append(paths, path)
			return nil
		})
		for _, path := range slices.Backward(paths) {
			_ = os.Remove(path) // Wine cannot remove a link to a directory
		}
	})
	return directory
}

// mount puts the snapshot in the volume and returns the task that lands it.
func (s *stage) mount(t testing.TB, snapshot []byte) node.Task {
	t.Helper()
	write(t, s.source, snapshot)
	return node.Task{Source: s.source, SHA256: hash(snapshot), Destination: s.destination}
}

func (s *stage) land(task node.Task) node.Result { return s.lander.Land(context.Background(), task) }

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// wantFile asserts what a file holds.
func wantFile(t testing.TB, path string, want []byte) {
	t.Helper()
	if got := read(t, path); string(got) != string(want) {
		t.Errorf("%s holds %d bytes with SHA-256 %s, want %d with %s", path, len(got), hash(got), len(want), hash(want))
	}
}

// wantAlone asserts that the destination's directory holds nothing but the destination.
func wantAlone(t testing.TB, destination string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(destination))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != filepath.Base(destination) {
			t.Errorf("stray file %s", entry.Name())
		}
	}
}

// wantResult asserts the outcome and the exit code.
func wantResult(t testing.TB, got node.Result, outcome node.Outcome, code node.ExitCode) {
	t.Helper()
	if got.Outcome != outcome || got.Code != code {
		t.Fatalf("got %s with exit code %d, want %s with %d: %s", got.Outcome, got.Code, outcome, code, got.Line(0))
	}
}

func wantError(t testing.TB, got node.Result, part string) {
	t.Helper()
	if !strings.Contains(got.Error, part) {
		t.Errorf("error %q does not say %q", got.Error, part)
	}
}

// serverCertificates returns a serving certificate of each kind of key that a kubelet may have.
func serverCertificates(t testing.TB) map[string]tls.Certificate {
	t.Helper()
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed25519Key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	certificates := map[string]tls.Certificate{}
	for kind, key := range map[string]crypto.Signer{"ECDSA": ecdsaKey, "RSA": rsaKey, "Ed25519": ed25519Key} {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		certificates[kind] = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	return certificates
}
