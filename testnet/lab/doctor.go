package lab

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

const (
	doctorLimit = "10s"
	mostAnswer  = 1 << 20
)

// finding is one row of doctor.
type finding struct {
	Area  string `json:"area"`
	State string `json:"state"`
	Text  string `json:"text"`
	Do    string `json:"do"`
	Since string `json:"since"`
}

// diagnosed requires doctor to name the trouble of a peer: a row of the area with this state and
// these words. Doctor ends by itself at its limit, without the row. A peer that is still checking is asked again.
func (w *world) diagnosed(ctx context.Context, p *peer, area, state string, words ...string) error {
	var began time.Time
	var rows []finding
	i := -1
	err := await.Until(ctx, startLimit, "doctor at "+p.name+" about "+area, func(ctx context.Context) (err error) {
		began = time.Now()
		if rows, err = w.doctor(ctx, p); err != nil {
			return await.Never(err)
		}
		i = slices.IndexFunc(rows, func(f finding) bool { return f.Area == area })
		if i >= 0 && rows[i].State == "wait" {
			err = fault.New("lab.diagnosed", fault.Unavailable, "%s: %s", area, rows[i].Text)
		}
		return err
	})
	if err != nil {
		return err
	}
	if i < 0 {
		w.violated("doctor at %s says nothing about %s: %+v", p.name, area, rows)
		return ctx.Err()
	}
	f := rows[i]
	w.say("doctor at %s after %.1f s: %s %s: %s", p.name, time.Since(began).Seconds(), f.Area, f.State, f.Text)
	said := f.Text + " " + f.Do
	missing := slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(said, word) })
	if f.State != state || missing {
		w.violated("doctor at %s: %s should be %s with the words %q: %+v", p.name, area, state, words, rows)
	}
	return ctx.Err()
}

// sound requires that doctor finds no problem at peers of a network that works.
func (w *world) sound(ctx context.Context, peers ...*peer) error {
	for _, p := range peers {
		began := time.Now()
		rows, err := w.doctor(ctx, p)
		if err != nil {
			return err
		}
		rows = slices.DeleteFunc(rows, func(f finding) bool { return f.State != "PROBLEM" })
		if len(rows) > 0 {
			w.violated("doctor at %s finds problems where none is: %+v", p.name, rows)
		}
		w.say("doctor at %s after %.1f s: %d problems", p.name, time.Since(began).Seconds(), len(rows))
	}
	return ctx.Err()
}

// doctor runs the command on the host of a peer.
func (w *world) doctor(ctx context.Context, p *peer) ([]finding, error) {
	const op = "lab.doctor"
	var out, complaints bytes.Buffer
	cmd := exec.CommandContext(ctx, w.Binary, "doctor", "--data", p.spec.Data, "--grpc", grpcAddress, "--timeout", doctorLimit, "-o", "json")
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := p.host.space.Do(cmd.Start); err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	var exit *exec.ExitError // it fails after a problem
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	var got struct {
		Findings []finding `json:"findings"`
	}
	if err := strictjson.Decode(out.Bytes(), mostAnswer, &got); err != nil {
		return nil, fault.New(op, fault.Internal, "%w: %s%s", err, &out, &complaints)
	}
	return got.Findings, nil
}
