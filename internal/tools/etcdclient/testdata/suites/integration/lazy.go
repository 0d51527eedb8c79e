// Package integration stands in the place of etcd's package of the same path.
package integration

import (
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/testutil"

	"go.etcd.io/etcd/tests/v3/framework/integration"
)

// LazyCluster is a peer that starts when its address is asked for.
type LazyCluster struct {
	peer func() *integration.Peer
	end  func()
}

// NewLazyCluster returns a peer that has not started.
func NewLazyCluster() *LazyCluster {
	c := &LazyCluster{end: func() {}}
	c.peer = sync.OnceValue(func() *integration.Peer {
		t, end := testutil.NewTestingTBProthesis("lazy_cluster")
		p := integration.NewPeer(t)
		c.end = func() { p.Close(); end() }
		return p
	})
	return c
}

// EndpointsGRPC returns the address of the peer.
func (c *LazyCluster) EndpointsGRPC() []string { return []string{c.peer().Address} }

// Terminate ends the peer.
func (c *LazyCluster) Terminate() { c.end() }
