// Package relay copies between connections.
package relay

import (
	"io"
	"net"
	"sync"
)

// Join copies both ways until both ends are done, and closes both.
func Join(a, b net.Conn) {
	defer a.Close()
	defer b.Close()
	var done sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		done.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // how a connection ends is the business of its two ends
			if half, ok := pair[0].(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		})
	}
	done.Wait()
}
