package decade

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/bundle"
)

// wrong is a mistake that an administrator can make: a bundle that is made of the one that is there. Without an edit it is
// a deletion.
type wrong struct {
	name string
	edit func(w *world, text string) []byte
}

// mistakes are the kinds of the cases of package bundle, made of the cluster's own bundle, and those cases themselves,
// whose CAs are other clusters'.
var mistakes = sync.OnceValue(func() []wrong {
	all := []wrong{{name: "delete"}}
	add := func(name string, edit func(*world, string) []byte) { all = append(all, wrong{name, edit}) }
	text := func(name string, edit func(string) string) {
		add(name, func(_ *world, t string) []byte { return []byte(edit(t)) })
	}
	text("byte-order mark", func(t string) string { return "\ufeff" + t })
	text("truncated", func(t string) string { return t[:len(t)*2/3] })
	text("first lines lost", func(t string) string { return t[100:] })
	text("joined blocks", func(t string) string { return strings.ReplaceAll(t, "-----\n-----BEGIN", "----------BEGIN") })
	text("emptied", func(string) string { return "" })
	text("blank", func(string) string { return " \n\n" })
	text("literal \\n", func(t string) string { return strings.ReplaceAll(t, "\n", `\n`) })
	text("indented", func(t string) string { return "  " + strings.ReplaceAll(t, "\n", "\n  ") })
	text("base64 of PEM", func(t string) string { return base64.StdEncoding.EncodeToString([]byte(t)) })
	text("CRLF", func(t string) string { return strings.ReplaceAll(t, "\n", "\r\n") })
	text("comments", func(t string) string { return "# the kubelets' CAs\n" + t })
	text("twice", func(t string) string { return t + t })
	text("headers", func(t string) string {
		return strings.Replace(t, "CERTIFICATE-----\n", "CERTIFICATE-----\nProc-Type: 4,ENCRYPTED\n\n", 1)
	})
	text("private key", func(t string) string {
		return t + "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIA==\n-----END EC PRIVATE KEY-----\n"
	})
	add("DER", func(_ *world, t string) []byte {
		block, _ := pem.Decode([]byte(t))
		if block == nil {
			return nil
		}
		return []byte(strings.ToValidUTF8(string(block.Bytes), "?"))
	})
	add("drops the newest", func(w *world, t string) []byte { return without(t, w.operator.signer.fingerprint) })
	add("drops the issuer", func(w *world, t string) []byte { return without(t, w.operator.issuer.fingerprint) })
	add("drops one", func(_ *world, t string) []byte {
		held, _ := bundle.Parse([]byte(t))
		if len(held.Certificates) == 0 {
			return nil
		}
		return without(t, held.Certificates[0].Fingerprint)
	})
	add("adds another cluster's CA", func(w *world, t string) []byte {
		return append([]byte(t), w.mint.authority("another-cluster", w.now.Add(-day), w.now.Add(90*day)).pem...)
	})
	add("replaces all by another cluster's CA", func(w *world, _ string) []byte {
		return w.mint.authority("another-cluster", w.now.Add(-day), w.now.Add(90*day)).pem
	})
	add("adds the client certificate", func(w *world, t string) []byte {
		return append([]byte(t), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.operator.client.Raw})...)
	})
	add("adds what has expired", func(w *world, t string) []byte {
		return append([]byte(t), w.mint.authority("ended", w.now.Add(-9*day), w.now.Add(-day)).pem...)
	})
	return append(all, cases()...)
})

// cases are those of package bundle.
func cases() []wrong {
	files, err := filepath.Glob("../../bundle/testdata/cases/*/new.pem")
	if err != nil || len(files) == 0 {
		panic("there are no cases")
	}
	var all []wrong
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			panic(err)
		}
		text = bytes.ToValidUTF8(text, []byte("?"))
		all = append(all, wrong{"case " + filepath.Base(filepath.Dir(name)), func(*world, string) []byte { return text }})
	}
	return all
}

// without is the bundle without one certificate.
func without(text string, f bundle.Fingerprint) []byte {
	held, _ := bundle.Parse([]byte(text))
	kept := &bundle.Bundle{}
	for _, c := range held.Certificates {
		if c.Fingerprint != f {
			kept.Certificates = append(kept.Certificates, c)
		}
	}
	return kept.Canonical()
}

// setNotReady edits a node's status.
func setNotReady(m *machine) func(client.Object) {
	return func(o client.Object) { o.(*corev1.Node).Status = m.status(false) }
}
