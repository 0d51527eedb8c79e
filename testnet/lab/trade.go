package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

// The service that a seller has on its loopback, and where the buyer reaches it.
const (
	serviceAddress = "127.0.0.1:11434"
	servedText     = "models of the seller"
	goneWithin     = 90 * time.Second // from the death of a buyer to free units, of a grant of goneTime
	goneTime       = 20 * time.Second
)

// commandsOf returns the shell of a person at the host of a peer.
func (w *world) commandsOf(p *peer) *desk {
	return &desk{host: p.host, home: w.dir, env: w.environment(w.dir)}
}

// trade plays three commands between two homes: sell, find, connect. The first byte of the service must come in
// time after the start of the homes, and by the way that their NATs allow. A buyer that gives up, or is killed,
// gives its units back.
func trade(ctx context.Context, w *world, seller, buyer *peer, kind nat, by time.Time) error {
	stop, err := serveText(seller)
	if err != nil {
		return err
	}
	defer stop()
	sells, buys := w.commandsOf(seller), w.commandsOf(buyer)
	play := func(at *desk, limit time.Duration, what, command, wanted string) error {
		return await.Until(ctx, limit, what, func(ctx context.Context) error {
			printed, err := at.run(ctx, command)
			if err == nil && !strings.Contains(printed, wanted) {
				err = fault.New("lab.trade", fault.Unavailable, "$ %s\n%s", command, printed)
			}
			return err
		})
	}
	left := func() time.Duration { return max(time.Until(by), time.Second) }
	const sell = `blackholed sell gpu --gpu-model "RTX 4090" --gpu-memory-mb 24000 --cpu-cores 8 --memory-mb 32000 --price 0.40 --city berlin --serve ` + serviceAddress + " --yes"
	if err := play(sells, left(), "the seller's peer answers", "blackholed status", "peer"); err != nil {
		return err
	}
	if printed, err := sells.run(ctx, sell); err != nil || !strings.Contains(printed, "gpu-berlin") {
		return fault.New("lab.trade", fault.Unavailable, "$ %s\n%s %w", sell, printed, err)
	}
	if err := play(buys, left(), "the buyer finds the offer", "blackholed offer find --type compute --gpu --near berlin", "gpu-berlin"); err != nil {
		w.violated("%v", err)
		return nil
	}
	const connect = "blackholed connect --type compute --gpu --near berlin --max-price 0.5 --listen " + serviceAddress + " --for "
	j, err := buys.start(ctx, connect+"1h")
	if err != nil {
		return err
	}
	if err := reached(ctx, buyer, left()); err != nil {
		w.violated("%v", err)
	} else {
		w.say("%s has the first byte of the service on %s's loopback %.1f s before its time", buyer.name, seller.name, time.Until(by).Seconds())
	}
	if err := freeUnits(ctx, w, seller, 0, time.Second); err != nil {
		return err
	}
	if err := await.Pause(ctx, 2*time.Second); err != nil { // the way is told each second
		return err
	}
	_ = j.cmd.Process.Signal(syscall.SIGTERM)
	<-j.ended
	way := map[nat]string{preserving: "directly", random: "a relay carries"}[kind]
	w.say("$ %s1h\n%s", connect, j.out.String())
	if !strings.Contains(j.out.String(), way) {
		w.violated("the buyer is not told that the way is %q", way)
	}
	if err := freeUnits(ctx, w, seller, 1, callLimit); err != nil {
		return err
	}
	if j, err = buys.start(ctx, connect+goneTime.String()); err != nil {
		return err
	}
	if err := reached(ctx, buyer, callLimit); err != nil {
		w.violated("%v", err)
	}
	_ = j.cmd.Process.Kill()
	<-j.ended
	return freeUnits(ctx, w, seller, 1, goneWithin)
}

// serveText answers every request on the loopback of a peer's host.
func serveText(p *peer) (stop func(), err error) {
	var l net.Listener
	err = p.host.space.Do(func() (err error) {
		l, err = net.Listen("tcp", serviceAddress)
		return err
	})
	if err != nil {
		return nil, fault.As("lab.trade", fault.Unavailable, err)
	}
	server := &http.Server{ReadHeaderTimeout: callLimit, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, servedText)
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // until stop
	}()
	return func() { _ = server.Close(); <-ended }, nil
}

// reached waits until the service answers at the loopback of a buyer's host.
func reached(ctx context.Context, p *peer, limit time.Duration) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return p.host.space.Dial(ctx, address)
	}}}
	return await.Until(ctx, limit, p.name+" reaches the service", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+serviceAddress, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return fault.As("lab.reached", fault.Unavailable, err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		if err == nil && string(text) != servedText {
			err = fault.New("lab.reached", fault.Conflict, "it says %q", text)
		}
		return err
	})
}

// freeUnits waits until a seller has a number of free units.
func freeUnits(ctx context.Context, w *world, seller *peer, wanted uint32, limit time.Duration) error {
	began := time.Now()
	err := await.Until(ctx, limit, fmt.Sprintf("%d units of %s are free", wanted, seller.name), func(ctx context.Context) error {
		all, err := seller.Offers().Grants(ctx)
		if err == nil && (len(all.Stocks) != 1 || all.Stocks[0].Free != wanted) {
			err = fault.New("lab.free", fault.Unavailable, "%v", all.Stocks)
		}
		return err
	})
	if err != nil {
		w.violated("%v", err)
	} else if wanted > 0 {
		w.say("the units of %s are free again after %.1f s", seller.name, time.Since(began).Seconds())
	}
	return ctx.Err()
}
