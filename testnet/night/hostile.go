package night

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/night/flood"
)

const (
	shift  = 45 * time.Second // of one attacker in one role
	breath = 5 * time.Second  // between two roles
)

// Attack is what attackers did in one role.
type Attack struct {
	About    string           `json:"about"`
	Shifts   int              `json:"shifts"`
	Sent     int64            `json:"sent"`
	Accepted int64            `json:"accepted"`
	Hosts    int              `json:"hosts"`
	Stolen   int64            `json:"stolen"` // bytes of goods without a grant
	Refused  map[string]int64 `json:"refused"`
}

// attack lets every attacker play one role after the other against drawn servers, until ctx ends. Standing roles have
// an attacker for the whole night.
func (n *night) attack(ctx context.Context) {
	logs, err := os.Create(filepath.Join(n.Dir, "attackers.log"))
	if err != nil {
		n.trouble("no log of attackers: %v", err)
		return
	}
	defer logs.Close()
	rng := rand.New(rand.NewPCG(n.Seed, 2))
	var standing, turns []flood.Row
	for _, r := range n.Roles {
		if r.Stands {
			standing = append(standing, r)
		} else {
			turns = append(turns, r)
		}
	}
	rng.Shuffle(len(standing), func(i, j int) { standing[i], standing[j] = standing[j], standing[i] })
	rng.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	var mu sync.Mutex // guards next and rng
	next := 0
	draw := func(rows []flood.Row) (row flood.Row, victim *site) {
		mu.Lock()
		defer mu.Unlock()
		row = rows[next%len(rows)]
		next++
		hidden := func(s *site) bool { return !s.public() || s.kind == idle }
		public := slices.DeleteFunc(slices.Clone(n.peers), hidden)
		return row, public[rng.IntN(len(public))]
	}
	var work sync.WaitGroup
	defer work.Wait()
	for i, at := range n.hostile {
		if i < len(standing) && (i < len(n.hostile)/2 || len(turns) == 0) {
			_, victim := draw(standing)
			work.Go(func() { n.play(ctx, standing[i], at, victim, n.Duration+time.Hour, logs) })
			continue
		}
		if len(turns) == 0 {
			break
		}
		work.Go(func() {
			for ctx.Err() == nil {
				row, victim := draw(turns)
				n.play(ctx, row, at, victim, shift, logs)
				if await.Pause(ctx, breath) != nil {
					return
				}
			}
		})
	}
}

// play plays one role at one attacker, for a time.
func (n *night) play(ctx context.Context, row flood.Row, at, victim *site, long time.Duration, logs *os.File) {
	n.scene.Say("%s plays %s against %s", at.name, row.Name, victim.name)
	o := flood.Order{
		Row: row.Name, Network: network.Default("public"), Target: victim.addresses(), From: at.froms, Most: long, Part: n.Part,
	}
	for _, g := range n.books.goods {
		o.Goods = append(o.Goods, flood.Good{Key: g.key, At: n.peers[g.seller].addresses(), Public: n.peers[g.seller].public()})
	}
	within := at.space.Do
	if row.Name == flood.Callers {
		o.Fronts, within = flood.Fronts{HTTP: httpAddress, DNS: dnsAddress}, victim.space.Do
	}
	end, err := flood.Start(context.WithoutCancel(ctx), n.Program, o, within, logs)
	if err != nil {
		n.trouble("%s cannot play %s: %v", at.name, row.Name, err)
		return
	}
	_ = await.Pause(ctx, long)
	r, err := end()
	if err != nil {
		n.trouble("%s did not end as %s: %v", at.name, row.Name, err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.attacks[row.Name]
	if a == nil {
		a = &Attack{About: row.About, Refused: map[string]int64{}}
		n.attacks[row.Name] = a
	}
	a.Shifts, a.Sent, a.Accepted = a.Shifts+1, a.Sent+r.Sent, a.Accepted+r.Accepted
	a.Hosts, a.Stolen = a.Hosts+r.Hosts, a.Stolen+r.Stolen
	for reason, times := range r.Refused {
		a.Refused[reason] += times
	}
	fmt.Fprintf(logs, "%s as %s: %+v\n", at.name, row.Name, r)
}
