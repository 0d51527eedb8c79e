package keeper

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// campaign asks the peers of small networks while records come and go. Every complete answer must
// have exactly the live records.
type campaign struct {
	*cluster
	t      *testing.T
	random *rand.Rand
	plan   *queries.Plan
	live   []*records.Record

	asked, complete int
}

func newCampaign(t *testing.T, seed uint64) *campaign {
	random := rand.New(rand.NewPCG(seed, 1))
	return &campaign{
		cluster: newCluster(t, 4+random.IntN(5)), t: t, random: random, plan: keepertest.Compile(t, query.Query{Limit: 100}),
	}
}

// register stores a record through a node.
func (c *campaign) register(n *node) {
	p := keepertest.NewProvider(c.t)
	r := p.Sign(c.t, keepertest.Offer(fmt.Sprint("r", len(c.live))), 1, time.Now())
	n.put(c.t, r) // as the owner's own index
	require.NoError(c.t, n.Store(c.t.Context(), []*records.Record{r})[0].Err)
	c.live = append(c.live, r)
}

// pose asks some nodes in a random order with short pauses.
func (c *campaign) pose(nodes []*node, times int) {
	for range times {
		n := nodes[c.random.IntN(len(nodes))]
		found, err := n.Query(c.t.Context(), c.plan)
		c.asked++
		if err == nil && found.Complete {
			c.complete++
			require.Len(c.t, found.Records, len(c.live))
		}
		time.Sleep(time.Duration(c.random.IntN(30)) * time.Millisecond)
	}
}

// askAsClients asks right after each registration elsewhere.
func (c *campaign) askAsClients() {
	clients := c.nodes[:2]
	c.dht.edit(func() {
		c.dht.clients = []peer.ID{clients[0].Self, clients[1].Self}
		c.dht.fire()
	})
	for range 5 {
		c.register(c.nodes[2+c.random.IntN(len(c.nodes)-2)])
		c.pose(clients, 20)
		time.Sleep(time.Second)
	}
}

// heal splits the network, lets both parts register, and asks everybody from the moment of the healing.
func (c *campaign) heal() {
	everybody := slices.Clone(c.dht.peers)
	at := 1 + c.random.IntN(len(everybody)-1)
	c.dht.split(everybody[:at], everybody[at:])
	time.Sleep(time.Duration(5+c.random.IntN(90)) * time.Second)
	c.register(c.nodes[0])
	c.register(c.nodes[len(c.nodes)-1])
	c.dht.split(everybody)
	c.pose(c.nodes, 100)
}

// arrive hides a node with records of its own, which then joins as after a restart. The newcomer asks.
func (c *campaign) arrive() {
	everybody := slices.Clone(c.dht.peers)
	late := c.nodes[0]
	c.dht.split(everybody[:1], everybody[1:])
	time.Sleep(20 * time.Minute) // the loss is forgotten
	for range 3 {
		c.register(c.nodes[1+c.random.IntN(len(c.nodes)-1)])
	}
	late.sync.Know.SetInformed(false, time.Now())
	c.dht.split(everybody)
	c.pose([]*node{late}, 50)
	c.register(late)
	c.pose(c.nodes, 50)
}

// Complete answers at clients of the DHT, after the healing of a partition, and right after joining
// lack no live record. TEST_LONG asks 10,000 questions in each situation.
func TestCompleteAnswersLackNothing(t *testing.T) {
	questions := 100
	if os.Getenv("TEST_LONG") != "" {
		questions = 10_000
	}
	for _, situation := range []string{"client", "healed", "joined"} {
		t.Run(situation, func(t *testing.T) {
			asked, complete := 0, 0
			for seed := uint64(1); asked < questions; seed++ {
				synctest.Test(t, func(t *testing.T) {
					c := newCampaign(t, seed)
					switch situation {
					case "client":
						c.askAsClients()
					case "healed":
						c.heal()
					default:
						c.arrive()
					}
					asked, complete = asked+c.asked, complete+c.complete
				})
			}
			t.Logf("%d of %d answers were complete, and none of them lacked a record", complete, asked)
		})
	}
}
