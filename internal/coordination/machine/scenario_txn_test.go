package machine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/coord"
)

// txnOf reads "if COMPARISON, ... then STEP, ... else STEP, ...". A comparison is "mod|create|version|value|lease KEY = X" or
// "holds LOCK = TOKEN"; a step is "put KEY VALUE", "del KEY" or "get KEY" with options. KEY may be PREFIX* or FROM..TO.
func txnOf(t *testing.T, words []string) coord.Op {
	o := &coord.Txn{}
	part := ""
	var sentence []string
	end := func() {
		switch {
		case len(sentence) == 0:
		case part == "if":
			o.If = append(o.If, compareOf(t, sentence))
		case part == "then":
			o.Then = append(o.Then, stepOf(t, sentence))
		default:
			o.Else = append(o.Else, stepOf(t, sentence))
		}
		sentence = nil
	}
	for _, word := range words {
		if word == "if" || word == "then" || word == "else" {
			end()
			part = word
			continue
		}
		word, comma := strings.CutSuffix(word, ",")
		if sentence = append(sentence, word); comma {
			end()
		}
	}
	end()
	return o
}

func compareOf(t *testing.T, words []string) coord.Compare {
	require.Len(t, words, 4)
	c := coord.Compare{Span: spanOf(words[1])}
	for i, operator := range []string{"=", "!=", "<", ">"} {
		if words[2] == operator {
			c.Operator = coord.Operator(i)
		}
	}
	switch words[0] {
	case "holds":
		return coord.Compare{Target: coord.Holds, Operator: c.Operator, Lock: words[1], Token: coord.Token(number(t, words[3]))}
	case "value":
		c.Target, c.Value = coord.Value, words[3]
		return c
	}
	for i, target := range []string{"mod", "create", "version", "value", "lease"} {
		if words[0] == target {
			c.Target = coord.Target(i)
		}
	}
	c.Number = number(t, words[3])
	return c
}

func spanOf(text string) coord.Span {
	if prefix, ok := strings.CutSuffix(text, "*"); ok {
		return coord.Under(prefix)
	}
	if from, to, ok := strings.Cut(text, ".."); ok {
		return coord.Span{From: from, To: to}
	}
	return coord.Exactly(text)
}

func stepOf(t *testing.T, words []string) coord.Step {
	has := func(option string) bool {
		return strings.Contains(" "+strings.Join(words[2:], " ")+" ", " "+option+" ")
	}
	switch words[0] {
	case "put":
		p := &coord.Put{Key: words[1], Lease: coord.LeaseID(number(t, argument(words, "lease"))), KeepValue: has("keep_value"), KeepLease: has("keep_lease")}
		if len(words) > 2 && !p.KeepValue {
			p.Value = []byte(words[2])
		}
		return coord.Step{Put: p, Prev: has("prev")}
	case "del":
		span := spanOf(words[1])
		return coord.Step{Delete: &span, Prev: has("prev")}
	}
	require.Equal(t, "get", words[0])
	r := &coord.Read{
		Query: coord.Query{
			Span: spanOf(words[1]), At: coord.Revision(number(t, argument(words, "at"))), Limit: int(number(t, argument(words, "limit"))),
			Descending: has("desc"), KeysOnly: has("keys"), CountOnly: has("count"),
		},
		MaxCreate: coord.Revision(number(t, argument(words, "max_create"))),
	}
	for i, order := range []string{"", "version", "create", "mod", "value"} {
		if argument(words, "by") == order {
			r.Order = coord.Order(i)
		}
	}
	return coord.Step{Read: r}
}

// describeTxn returns the result of a transaction as text.
func describeTxn(r coord.TxnResult) string {
	var b strings.Builder
	if r.Succeeded {
		b.WriteString("then\n")
	} else {
		fmt.Fprintf(&b, "else: compare[%d]: %s\n", r.Failed-1, r.Reason)
	}
	for i, s := range r.Steps {
		fmt.Fprintf(&b, "  [%d] %d", i, s.Count)
		for _, kv := range s.Keys {
			fmt.Fprintf(&b, " %s=%s", kv.Key, kv.Value)
			fmt.Fprintf(&b, "(%d %d %d)", kv.CreateRevision, kv.ModRevision, kv.Version)
		}
		b.WriteString("\n")
	}
	return b.String()
}
