package coordination

import (
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// parseStep reads a put, a del or a get with its flags.
func parseStep(words []string) (s coord.Step, err error) {
	flags := pflag.NewFlagSet(words[0], pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var finish func(args []string) (coord.Step, error)
	switch words[0] {
	case "put":
		finish = putStep(flags)
	case "del":
		finish = deleteStep(flags)
	case "get":
		finish = getStep(flags)
	default:
		return s, fault.Invalidf("", nil, "must begin with put, get or del, not %q", words[0])
	}
	if err := flags.Parse(words[1:]); err != nil {
		return s, fault.Invalidf("", nil, "%v", err)
	}
	return finish(flags.Args())
}

func putStep(flags *pflag.FlagSet) func([]string) (coord.Step, error) {
	lease := flags.String("lease", "", "")
	prev := flags.Bool("prev-kv", false, "")
	return func(args []string) (s coord.Step, err error) {
		if len(args) != 2 {
			return s, fault.Invalidf("KEY", nil, "and VALUE must be given: quote a value with spaces")
		}
		put := &coord.Put{Key: args[0], Value: []byte(args[1])}
		if *lease != "" {
			if put.Lease, err = ParseLease(*lease); err != nil {
				return s, exit.Rename(err, "--lease")
			}
		}
		return coord.Step{Put: put, Prev: *prev}, nil
	}
}

func deleteStep(flags *pflag.FlagSet) func([]string) (coord.Step, error) {
	prefix := flags.Bool("prefix", false, "")
	prev := flags.Bool("prev-kv", false, "")
	return func(args []string) (coord.Step, error) {
		span, err := spanOfWords(args, *prefix)
		return coord.Step{Delete: &span, Prev: *prev}, err
	}
}

func getStep(flags *pflag.FlagSet) func([]string) (coord.Step, error) {
	read := &coord.Read{}
	prefix := flags.Bool("prefix", false, "")
	order := flags.String("order", "key", "")
	flags.Int64Var((*int64)(&read.At), "rev", 0, "")
	flags.IntVar(&read.Limit, "limit", 0, "")
	flags.BoolVar(&read.Descending, "descend", false, "")
	flags.BoolVar(&read.KeysOnly, "keys-only", false, "")
	flags.BoolVar(&read.CountOnly, "count-only", false, "")
	return func(args []string) (s coord.Step, err error) {
		if read.Order, err = parseOrder("--order", *order); err != nil {
			return s, err
		}
		if read.Limit < 0 {
			return s, fault.Invalidf("--limit", read.Limit, "must be at least 0")
		}
		read.Span, err = spanOfWords(args, *prefix)
		return coord.Step{Read: read}, err
	}
}

// txnView is the JSON form of the result of a transaction.
type txnView struct {
	Succeeded bool       `json:"succeeded"`
	Failed    int        `json:"failed,omitempty"` // position from 1 of the first comparison that does not hold
	Reason    string     `json:"reason,omitempty"`
	Revision  int64      `json:"revision"`
	Changed   int        `json:"changed"`
	Results   []stepView `json:"results"`
	Forgotten bool       `json:"forgotten,omitempty"`
}

type stepView struct {
	Step  string    `json:"step"` // put, del or get
	Count int       `json:"count"`
	Keys  []keyView `json:"kvs,omitempty"`
}

// txnDocument shows the branch that was executed, and the result of each of its steps.
func txnDocument(op *coord.Txn, r coord.Result) term.Document {
	v := txnView{
		Succeeded: r.Txn.Succeeded, Failed: r.Txn.Failed, Reason: r.Txn.Reason, Revision: int64(r.Revision), Changed: r.Changed,
		Results: make([]stepView, len(r.Txn.Steps)), Forgotten: r.Txn.Forgotten,
	}
	var b strings.Builder
	branch := op.Then
	if v.Succeeded {
		b.WriteString("SUCCESS\n")
	} else {
		branch = op.Else
		b.WriteString("FAILURE: comparison " + strconv.Itoa(v.Failed) + ": " + v.Reason + "\n")
	}
	b.WriteString("revision " + strconv.FormatInt(v.Revision, 10) + "\n")
	for i, s := range r.Txn.Steps {
		step := stepView{Step: "get", Count: s.Count}
		if i < len(branch) && branch[i].Put != nil {
			step.Step = "put"
		} else if i < len(branch) && branch[i].Delete != nil {
			step.Step = "del"
		}
		b.WriteString("\n" + step.Step + ": " + strconv.Itoa(s.Count) + "\n")
		for _, kv := range s.Keys {
			k := ShowKey(kv)
			line := k.Key
			if i < len(branch) && branch[i].Read != nil && branch[i].Read.KeysOnly {
				k.Value = nil
			} else {
				line += "  " + *k.Value
			}
			step.Keys = append(step.Keys, k)
			b.WriteString(term.Clean(line) + "\n")
		}
		v.Results[i] = step
	}
	if v.Forgotten {
		b.WriteString("\nThe results were too large to be kept for a repetition after a failure of the leader: read the keys again.\n")
	}
	return term.Document{Value: v, Table: term.Plain(b.String())}
}
