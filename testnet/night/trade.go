package night

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
)

const (
	goodsType   = "goods" // what sellers carry to holders of a grant
	shopType    = "shop"  // what has an endpoint on the Internet
	goodsBytes  = 64 << 10
	goodsUnits  = 3
	goodsFor    = 30 * time.Second // the longest grant
	heldFor     = 20 * time.Second
	thinks      = 6 * time.Second // of a buyer between two purchases
	openLimit   = 2 * time.Minute // of a seller at the start
	buyLimit    = time.Minute     // of one purchase
	lookEvery   = 4 * time.Second // after shops, of each looking peer
	shopsFound  = 100
	fallsSilent = 75 * time.Second // an offer may be hidden for so long after trouble of its provider
	mostKept    = 40               // lines of one kind
)

// good is what a seller has at its loopback. Its bytes tell who served them.
type good struct {
	seller int
	key    string
	text   []byte
}

// shop is an endpoint on the Internet that counts who asks.
type shop struct {
	seller int
	id     string
}

// books are what honest sellers and buyers saw.
type books struct {
	goods []good // complete before the first purchase
	shops []shop

	mu      sync.Mutex            // guards what follows
	asked   map[int]map[int]int   // requests to a shop, by seller and minute
	bought  []time.Duration       // from the wish to the first byte
	wrong   []string              // bytes that no seller sold
	failed  map[string]int        // purchases in vain, at peers without trouble
	looks   int                   // for each shop in an answer
	hidden  map[int]time.Duration // since when, by seller
	longest time.Duration
	unseen  int
	lines   []string // of hidden shops
}

func newBooks() *books {
	return &books{asked: map[int]map[int]int{}, failed: map[string]int{}, hidden: map[int]time.Duration{}}
}

// textOf are the goods of a seller.
func textOf(seller int) []byte {
	var text bytes.Buffer
	sum := sha256.Sum256(fmt.Append(nil, "goods of ", seller))
	for text.Len() < goodsBytes {
		text.Write(sum[:])
		sum = sha256.Sum256(sum[:])
	}
	return text.Bytes()
}

// openGoods lets every third peer sell, and servers show a shop. stop ends their services.
func (n *night) openGoods(ctx context.Context) (stop func(), err error) {
	var open []net.Listener
	var work sync.WaitGroup
	stop = func() {
		for _, l := range open {
			_ = l.Close()
		}
		work.Wait()
	}
	listen := func(i int, address string, serve func(net.Conn)) error {
		var l net.Listener
		err := n.peers[i].space.Do(func() (err error) {
			l, err = net.Listen("tcp", address)
			return err
		})
		if err != nil {
			return fault.As("night.open", fault.Unavailable, err)
		}
		open = append(open, l)
		work.Go(func() { accept(l, serve) })
		return nil
	}
	for i, p := range n.peers[:len(n.peers)-1] {
		if i%3 == 2 {
			g := good{seller: i, text: textOf(i)}
			sells := func(c net.Conn) { _, _ = c.Write(g.text) } // a connection that a fault cuts is no finding
			if err := listen(i, fmt.Sprint("127.0.0.1:", goodsPort), sells); err != nil {
				return stop, err
			}
			o := market.Plain("goods-"+p.name, 1)
			o.Metadata.Type, o.Metadata.Endpoints, o.Metadata.Access, o.Capabilities = goodsType, nil, records.AccessPeer, nil
			o.Metadata.Stock = &records.Stock{Unit: "slot", Total: goodsUnits, MaxTTL: uint32(goodsFor.Seconds()), MaxPerConsumer: 1}
			if g.key, err = n.offer(ctx, i, o, fmt.Sprint("127.0.0.1:", goodsPort)); err != nil {
				return stop, err
			}
			n.books.goods = append(n.books.goods, g)
		}
		if p.public() && p.kind != relay {
			if err := listen(i, fmt.Sprint(p.outside, ":", shopPort), func(c net.Conn) { n.books.serve(c, i, n.scene.Now()) }); err != nil {
				return stop, err
			}
			o := market.Plain("shop-"+p.name, 1)
			o.Metadata.Type, o.Metadata.Endpoints, o.Capabilities = shopType, []string{"http://" + p.outside.String()}, nil
			if _, err = n.offer(ctx, i, o, ""); err != nil {
				return stop, err
			}
			n.books.shops = append(n.books.shops, shop{i, o.ID})
		}
	}
	n.scene.Say("%d peers sell goods, %d have a shop", len(n.books.goods), len(n.books.shops))
	return stop, nil
}

// offer registers an offer, and serves it.
func (n *night) offer(ctx context.Context, i int, o records.Offer, serve string) (key string, err error) {
	c, err := n.scene.Client(i)
	if err != nil {
		return "", err
	}
	defer c.Close()
	err = await.Until(ctx, openLimit, n.peers[i].name+" offers "+o.ID, func(ctx context.Context) error {
		r, err := c.Offers().Register(ctx, o)
		if fault.KindOf(err) == fault.Exists { // an earlier attempt had no answer
			r, err = c.Offers().Update(ctx, o)
		}
		if key = r.Key; err == nil && serve != "" {
			err = c.Offers().Serve(ctx, o.ID, serve)
		}
		return err
	})
	return key, err
}

// accept serves connections until the end of the listener.
func accept(l net.Listener, serve func(net.Conn)) {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		work.Go(func() {
			defer c.Close()
			serve(c)
		})
	}
}

// serve answers one request to a shop.
func (b *books) serve(c net.Conn, seller int, now time.Duration) {
	b.mu.Lock()
	of := b.asked[seller]
	if of == nil {
		of = map[int]int{}
		b.asked[seller] = of
	}
	of[int(now.Minutes())]++
	b.mu.Unlock()
	request := make([]byte, 4096)
	if _, err := c.Read(request); err == nil {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nshop\n")
	}
}

// customers starts a buyer at every peer that sells nothing, and a look after shops at every third one.
func (n *night) customers(ctx context.Context, work *sync.WaitGroup) {
	for i := range n.peers[:len(n.peers)-1] {
		rng := rand.New(rand.NewPCG(n.Seed, uint64(100+i)))
		if i%3 != 2 {
			work.Go(func() {
				n.every(ctx, i, func() time.Duration { return time.Duration(rng.Int64N(int64(2 * thinks))) }, n.buy)
			})
		}
		if i%3 == 1 {
			work.Go(func() { n.every(ctx, i, func() time.Duration { return lookEvery }, n.look) })
		}
	}
}

// every does one thing with a client of a peer, again and again.
func (n *night) every(ctx context.Context, i int, pause func() time.Duration, do func(ctx context.Context, i int, c *operator.Client)) {
	c, err := n.scene.Client(i)
	if err != nil {
		n.trouble("no client of %s: %v", n.peers[i].name, err)
		return
	}
	defer c.Close()
	for await.Pause(ctx, pause()) == nil {
		do(ctx, i, c)
	}
}

// buy takes a unit of some goods, reads them through the peer, checks them, and gives the unit back.
func (n *night) buy(ctx context.Context, i int, c *operator.Client) {
	ctx, cancel := context.WithTimeout(ctx, buyLimit)
	defer cancel()
	troubled := func() bool { // a fault at the buyer or a seller can make it fail
		return n.troubled(i) || slices.ContainsFunc(n.books.goods, func(g good) bool { return n.troubled(g.seller) })
	}
	began, before := time.Now(), troubled()
	q := query.Query{Type: goodsType, Limit: 10, Sort: query.SortRandom}
	taken, err := c.Offers().Take(ctx, q, client.Want{Units: 1, For: heldFor})
	var first time.Duration
	var text []byte
	if err == nil {
		g := taken.Grants[0]
		first, text, err = n.fetch(ctx, i, c, g, began)
		_, _ = c.Offers().Release(context.WithoutCancel(ctx), g) // or it ends with its time
		at := slices.IndexFunc(n.books.goods, func(known good) bool { return known.key == g.Key })
		switch {
		case at < 0:
			err = fault.New("night.buy", fault.Unavailable, "a stranger sold nothing: %w", err)
		case err == nil && !bytes.Equal(text, n.books.goods[at].text):
			n.books.note(&n.books.wrong, "%s got %d bytes of %s that it does not sell",
				n.peers[i].name, len(text), n.peers[n.books.goods[at].seller].name)
		}
	}
	n.books.mu.Lock()
	defer n.books.mu.Unlock()
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
	case err == nil:
		n.books.bought = append(n.books.bought, first)
	case !before && !troubled():
		what := err.Error()
		if known := n.books.failed[what]; known == 0 && len(n.books.failed) >= mostKept {
			what = "others"
		}
		n.books.failed[what]++
		n.scene.Say("%s bought nothing in %.1f s: %v%s", n.peers[i].name, time.Since(began).Seconds(), err, refusals(taken))
	}
}

// refusals lists which offers gave nothing, and why.
func refusals(t client.Taken) string {
	var b strings.Builder
	for _, r := range t.Refused {
		fmt.Fprintf(&b, "; %s: %v", r.Key[strings.LastIndexByte(r.Key, '/')+1:], r.Err)
	}
	return b.String()
}

// note adds a line.
func (b *books) note(to *[]string, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(*to) < mostKept {
		*to = append(*to, fmt.Sprintf(format, args...))
	}
}

// fetch reads what a grant is for, by a connection through the peer.
func (n *night) fetch(
	ctx context.Context, i int, c *operator.Client, g client.Grant, began time.Time,
) (first time.Duration, text []byte, err error) {
	_, state, err := c.Offers().Connect(ctx, g, "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	conn, err := n.peers[i].space.Dial(ctx, state.Listen)
	if err != nil {
		return 0, nil, fault.As("night.fetch", fault.Unavailable, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	one := make([]byte, 1)
	if _, err := io.ReadFull(conn, one); err != nil {
		return 0, nil, fault.New("night.fetch", fault.Unavailable, "no byte of what was bought: %w", err)
	}
	first = time.Since(began)
	rest, err := io.ReadAll(conn)
	if err == nil && len(rest)+1 != goodsBytes {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		n.scene.Say("%s got %d bytes of %s in %.1f s: %v", n.peers[i].name, len(rest)+1, g.Key, time.Since(began).Seconds(), err)
		return first, nil, fault.New("night.fetch", fault.Unavailable, "the end of what was bought is lost: %w", err)
	}
	return first, append(one, rest...), nil
}

// troubled reports whether a peer is under a fault, or was a short time ago.
func (n *night) troubled(i int) bool { return n.scene.Troubled(i) }

// look asks a peer for shops, and notes which honest ones are missing although their providers are long without trouble.
func (n *night) look(ctx context.Context, i int, c *operator.Client) {
	now := n.scene.Now()
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	a, err := c.Offers().Query(limited, query.Query{Type: shopType, Limit: shopsFound})
	if err != nil {
		return // the questions of the nemesis count those
	}
	n.books.mu.Lock()
	defer n.books.mu.Unlock()
	calm := func(k int) bool { return n.scene.Calm(k) > fallsSilent }
	if !calm(i) {
		return
	}
	for _, s := range n.books.shops {
		if !calm(s.seller) {
			delete(n.books.hidden, s.seller)
			continue
		}
		n.books.looks++
		if slices.ContainsFunc(a.Results, func(r query.ResultView) bool {
			return r.Record.ID == s.id && r.Record.ProviderID == n.peers[s.seller].id
		}) {
			delete(n.books.hidden, s.seller)
			continue
		}
		n.books.unseen++
		since, before := n.books.hidden[s.seller]
		if !before {
			since = now
			n.books.hidden[s.seller] = now
		}
		n.books.longest = max(n.books.longest, now-since)
		if len(n.books.lines) < mostKept {
			why := "not known"
			for _, x := range a.Excluded {
				if x.Provider == n.peers[s.seller].id && (x.ID == "" || x.ID == s.id) {
					why = x.Reason
				}
			}
			n.books.lines = append(n.books.lines, fmt.Sprintf("%.1f s: %s does not see %s: %s; complete %v %s",
				now.Seconds(), n.peers[i].name, s.id, why, a.Complete, strings.TrimSpace(a.Reason)))
		}
	}
}
