package transport

import (
	"slices"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// watcher reports members that close their last connection. A process that ends closes its connections; a network that
// fails closes none.
type watcher struct{ t *Transport }

// watch starts a watcher. The network's StopNotify ends it.
func watch(t *Transport) network.Notifiee {
	w := watcher{t}
	n := &network.NotifyBundle{DisconnectedF: func(_ network.Network, c network.Conn) { w.disconnected(c.RemotePeer()) }}
	t.config.Host.Network().Notify(n)
	return n
}

func (w watcher) disconnected(id peer.ID) {
	t := w.t
	if t.config.Host.Network().Connectedness(id) == network.Connected {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	for _, member := range w.members(id) {
		t.running.Go(func() { t.receiver.Unreachable(member, true) })
	}
}

// members returns the members of a peer with a stream. Call it with mu held.
func (w watcher) members(id peer.ID) (members []uint64) {
	add := func(at peer.ID, member uint64) {
		if at == id && !slices.Contains(members, member) {
			members = append(members, member)
		}
	}
	for key, l := range w.t.streams {
		add(l.peer, key.member)
	}
	for key, in := range w.t.inbound {
		add(in.peer, key.member)
	}
	return members
}
