package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/lab/crowd"
)

const (
	crowdSize      = 900
	crowdShort     = 200
	crowdServers   = 3
	crowdConsumers = 4
	crowdLimit     = 3 * time.Minute // until the crowd has tried
	crowdQuestions = 8
)

// crowded lets a crowd of honest idle peers connect to a provider with too little room. Old and new
// consumers must still use the provider.
func crowded(ctx context.Context, w *world) error {
	size, consumers := crowdSize, crowdConsumers
	if w.Short {
		size, consumers = crowdShort, 2
	}
	public, err := w.servers(ctx, crowdServers, publicAddress, nil)
	if err != nil {
		return err
	}
	// The provider refuses connections above four times its mark: a third of the crowd.
	provider, err := w.server(ctx, "provider", crowdServers, public, fmt.Sprintf("CONNECTIONS_MOST=%d", size/6))
	if err != nil {
		return err
	}
	if err := provider.awaitReady(ctx, startLimit, crowdServers); err != nil {
		return err
	}
	key, err := w.register(ctx, provider, "popular")
	if err != nil {
		return err
	}
	if err := w.allFind(ctx, public[:1], findLimit, key); err != nil {
		return err
	}
	leave, err := gather(ctx, w, provider, size)
	if err != nil {
		return err
	}
	defer leave()
	for i := range consumers {
		c, err := w.server(ctx, fmt.Sprintf("consumer-%d", i+1), crowdServers+1+i, public[:2])
		if err != nil {
			return err
		}
		if err := c.awaitReady(ctx, startLimit, 1); err != nil {
			return err
		}
		if err := keepsUsing(ctx, w, c, key); err != nil {
			return err
		}
	}
	return errors.Join(keepsUsing(ctx, w, public[0], key), w.sound(ctx, public[0]))
}

// keepsUsing asks a peer several times. Every default answer must have the service.
func keepsUsing(ctx context.Context, w *world, p *peer, key string) error {
	if err := w.awaitKnown(ctx, p, key, findLimit); err != nil {
		w.violated("%v", err)
		return ctx.Err()
	}
	missing := 0
	for range crowdQuestions {
		a, err := w.find(ctx, p, false)
		if err != nil {
			return err
		}
		if result(a, key) == nil {
			missing++
		}
		if err := await.Pause(ctx, 1500*time.Millisecond); err != nil {
			return err
		}
	}
	w.say("%s was asked %d times; the service was missing %d times", p.name, crowdQuestions, missing)
	if missing > 0 {
		w.violated("%s does not find the popular service in %d of %d answers", p.name, missing, crowdQuestions)
	}
	return nil
}

// gather starts a child of this program: many hosts, each with its own address. It waits for one
// attempt of every host. The returned function ends the child.
func gather(ctx context.Context, w *world, provider *peer, size int) (leave func(), err error) {
	h, err := w.host(w.internet, "crowd", "30.0.0.1/32")
	if err != nil {
		return nil, err
	}
	var addresses []netip.Prefix
	for i := range size {
		addresses = append(addresses, netip.PrefixFrom(crowd.Address(i), 32))
	}
	if err := h.port.Add(addresses...); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, w.Program, crowd.Command, fmt.Sprint(size), strings.Join(provider.addresses(), ","))
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = cmd.StdinPipe() // the child ends with it, so also with this process
	}
	if err != nil {
		cancel()
		return nil, fault.As("lab.crowd", fault.Internal, err)
	}
	if err := h.space.Do(cmd.Start); err != nil {
		cancel()
		return nil, fault.As("lab.crowd", fault.Unavailable, err)
	}
	tried, ended := make(chan string, 1), make(chan struct{})
	go func() { // until the end of the child
		defer close(ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			select {
			case tried <- lines.Text():
			default:
			}
		}
		_ = cmd.Wait() // cancelled
	}()
	leave = func() {
		cancel()
		<-ended
	}
	select {
	case line := <-tried:
		w.say("crowd: %s", line)
		return leave, nil
	case <-time.After(crowdLimit):
		err = fault.New("lab.crowd", fault.Timeout, "the crowd did not try within %v", crowdLimit)
	case <-ended:
		err = fault.New("lab.crowd", fault.Unavailable, "the crowd ended")
	case <-ctx.Done():
		err = ctx.Err()
	}
	leave()
	return nil, err
}
