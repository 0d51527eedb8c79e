package coordtest

import (
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Outcome returns the result of a machine in the form of package ops.
func Outcome(r machine.Result) ops.Result {
	out, _ := ops.ResultOf(r.Answer)
	out.Revision, out.Err = r.Revision, r.Err
	return out
}

// Apply applies a command, and reads the place of its claim.
func Apply(m *machine.Machine, index, term uint64, cmd *coordv1.Command) (ops.Result, machine.ApplyEffects) {
	result, effects := m.Apply(index, term, cmd)
	out := Outcome(result)
	out.Name(cmd)
	var request interface{ GetName() string } = cmd.GetTryLock()
	if r := cmd.GetLock(); r != nil {
		request = r
	}
	if out.Lock.Key == "" || out.Err != nil || cmd.GetUnlock() != nil {
		return out, effects
	}
	info, _ := m.Lock(request.GetName())
	all := append(slices.Clone(info.Holding), info.Waiting...)
	at := slices.IndexFunc(all, func(kv *coord.KeyValue) bool { return kv.Token() == out.Lock.Token })
	if at < 0 {
		at = len(all)
	} else if at >= len(info.Holding) {
		out.Lock.Position = at - len(info.Holding) + 1
	}
	if at > 0 {
		out.Lock.Predecessor = all[at-1].Key
	}
	return out, effects
}
