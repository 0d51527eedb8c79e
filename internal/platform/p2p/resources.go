package p2p

import (
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// resourceMetrics registers the count of what the resource manager refuses. libp2p's own metrics of resources trace each stream and
// each reservation of memory, several for each message, and cost a twentieth of a busy peer's processor time.
func resourceMetrics(reg prometheus.Registerer) ([]rcmgr.Option, error) {
	options := []rcmgr.Option{rcmgr.WithMetricsDisabled()}
	if reg == nil {
		return options, nil
	}
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "blackhole_resources_refused_total",
		Help: "Connections, streams and memory that bounds of this peer refused.",
	}, []string{"resource"})
	if err := reg.Register(refused); err != nil {
		return nil, fault.As("p2p.New", fault.Exists, err)
	}
	return append(options, rcmgr.WithMetrics(resourceCount{refused})), nil
}

// resourceCount implements rcmgr.MetricsReporter. It counts refusals only.
type resourceCount struct{ refused *prometheus.CounterVec }

func (c resourceCount) add(resource string) { c.refused.WithLabelValues(resource).Inc() }

func (resourceCount) AllowConn(network.Direction, bool)      {}
func (c resourceCount) BlockConn(network.Direction, bool)    { c.add("connection") }
func (resourceCount) AllowStream(peer.ID, network.Direction) {}

func (c resourceCount) BlockStream(peer.ID, network.Direction) { c.add("stream") }
func (resourceCount) AllowPeer(peer.ID)                        {}
func (c resourceCount) BlockPeer(peer.ID)                      { c.add("peer") }
func (resourceCount) AllowProtocol(protocol.ID)                {}
func (c resourceCount) BlockProtocol(protocol.ID)              { c.add("protocol") }
func (c resourceCount) BlockProtocolPeer(protocol.ID, peer.ID) { c.add("protocol") }
func (resourceCount) AllowService(string)                      {}
func (c resourceCount) BlockService(string)                    { c.add("service") }
func (c resourceCount) BlockServicePeer(string, peer.ID)       { c.add("service") }
func (resourceCount) AllowMemory(int)                          {}
func (c resourceCount) BlockMemory(int)                        { c.add("memory") }
