package night

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

const (
	sampleEvery = 10 * time.Second
	lateEvery   = 100 * time.Millisecond
)

// Sample is what a peer had at a time: its memory, descriptors, and bytes of streams with other peers so far.
type Sample struct {
	At       float64 `json:"at"` // seconds
	Memory   uint64  `json:"memory"`
	Files    int     `json:"files"`
	Received float64 `json:"received,omitempty"` // of the idle peer
	Sent     float64 `json:"sent,omitempty"`
}

// sample looks at every honest process until ctx ends.
func (n *night) sample(ctx context.Context) {
	last := len(n.peers) - 1
	transport := &http.Transport{DialContext: n.Dial(last), DisableKeepAlives: true}
	client := &http.Client{Transport: transport}
	for await.Pause(ctx, sampleEvery) == nil {
		for i, p := range n.peers {
			process := p.process.Load()
			if process == nil || !process.Running() || n.scene.Troubled(i) {
				continue
			}
			s := Sample{At: n.scene.Now().Seconds(), Memory: process.Resident()}
			open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", process.PID()))
			if s.Files = len(open); err != nil || s.Memory == 0 {
				continue // it ended meanwhile
			}
			if i == last {
				s.Received, s.Sent = flows(ctx, client)
			}
			n.mu.Lock()
			n.samples[p.name] = append(n.samples[p.name], s)
			n.mu.Unlock()
		}
	}
}

// lateness measures by how much this program runs late: what it waits for on a busy machine is not the doing of the peers.
func (n *night) lateness(ctx context.Context) {
	for began := time.Now(); await.Pause(ctx, lateEvery) == nil; began = time.Now() {
		n.mu.Lock()
		n.late = max(n.late, time.Since(began)-lateEvery)
		n.mu.Unlock()
	}
}

// flows are the bytes of a peer's streams with others since its start, 0 without an answer.
func flows(ctx context.Context, c *http.Client) (received, sent float64) {
	all, _ := network.Metrics(ctx, c, httpAddress) // a look in vain is no finding
	for name, value := range all {
		switch {
		case strings.HasPrefix(name, `blackhole_stream_bytes_total{direction="sent"`):
			sent += value
		case strings.HasPrefix(name, `blackhole_stream_bytes_total{direction="`):
			received += value
		}
	}
	return received, sent
}
