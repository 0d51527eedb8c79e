package client

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// required sets a requirement of three instances and returns its revision.
func (p *fixture) required(name string) coord.Revision {
	question, err := instances.Question(instance.Query{Name: instance.Name{Namespace: "default", Service: "storage"}})
	require.NoError(p.t, err)
	r, _, err := ops.Of(p.solo).Do(context.Background(), ops.Command{Op: &ops.SetRequirement{Requirement: requirements.Requirement{
		Name: name, Min: 3, Question: question,
	}}})
	require.NoError(p.t, err)
	return r.Revision
}

// judge writes a status of the requirement.
func (p *fixture) judge(name string, of coord.Revision, available int) {
	v := requirements.Status{State: requirements.Insufficient, Needed: 3, Available: available, Of: of}
	if available >= 3 {
		v.State = requirements.Satisfied
	}
	p.put(requirements.StatusKey(name), string(v.Encode()))
}

// TestAwaitRequirement expects a wait to survive a loss of the peer and of the group.
func TestAwaitRequirement(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		_, err := c.Services().Requirements().Await(t.Context(), "store")
		require.ErrorIs(t, err, fault.NotFound)
		of := p.required("store")
		bounded, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := c.Services().Requirements().Await(bounded, "store")
		require.ErrorIs(t, err, fault.Timeout)
		require.False(t, s.State != "pending")

		began := time.Now()
		time.AfterFunc(time.Minute, func() { p.judge("store", of, 1) })
		time.AfterFunc(2*time.Minute, p.restart)
		time.AfterFunc(3*time.Minute, func() { p.solo.Halt("no majority") })
		time.AfterFunc(4*time.Minute, p.solo.Resume)
		time.AfterFunc(5*time.Minute, func() { p.judge("store", of, 2) })
		time.AfterFunc(6*time.Minute, func() { p.judge("store", of, 3) })
		s, err = c.Services().Requirements().Await(t.Context(), "store")
		require.NoError(t, err)
		require.True(t, s.Satisfied())
		require.Equal(t, 3, s.Available)
		require.Equal(t, 6*time.Minute, time.Since(began).Truncate(time.Minute))

		of = p.required("other")
		p.judge("other", of, 2)
		bounded, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err = c.Services().Requirements().Await(bounded, "other")
		require.ErrorIs(t, err, fault.Timeout)
		require.Equal(t, []any{string(requirements.Insufficient), 2, 3}, []any{s.State, s.Available, s.Min})
	})
}
