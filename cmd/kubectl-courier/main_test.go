package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets scripts run the real program.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kubectl-courier": main})
}
