package machine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// txnOf reads "if COMPARISON, ... then STEP, ... else STEP, ...". A comparison is "mod|create|version|value|lease KEY = X" or
// "holds LOCK = TOKEN"; a step is "put KEY VALUE", "del KEY" or "get KEY" with options, or a transaction in parentheses. KEY may be
// PREFIX* or FROM..TO.
func txnOf(t *testing.T, words []string) proto.Message {
	o := branchesOf(t, words)
	return &apiv1.TxnRequest{Compare: o.Compare, Then: o.Then, Else: o.Else}
}

func branchesOf(t *testing.T, words []string) *apiv1.TxnBranch {
	o := &apiv1.TxnBranch{}
	part, depth := "", 0
	var sentence []string
	end := func() {
		switch {
		case len(sentence) == 0:
		case part == "if":
			o.Compare = append(o.Compare, compareOf(t, sentence))
		case part == "then":
			o.Then = append(o.Then, stepOf(t, sentence))
		default:
			o.Else = append(o.Else, stepOf(t, sentence))
		}
		sentence = nil
	}
	for _, word := range words {
		if depth == 0 && (word == "if" || word == "then" || word == "else") {
			end()
			part = word
			continue
		}
		if depth += strings.Count(word, "(") - strings.Count(word, ")"); depth > 0 {
			sentence = append(sentence, word)
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

func compareOf(t *testing.T, words []string) *apiv1.Compare {
	require.Len(t, words, 4)
	c := &apiv1.Compare{}
	c.Key, c.RangeEnd = coordtest.Ends(spanOf(words[1]))
	for i, operator := range []string{"=", "!=", "<", ">"} {
		if words[2] == operator {
			c.Operator = apiv1.Compare_Operator(i)
		}
	}
	switch words[0] {
	case "holds":
		return &apiv1.Compare{Target: apiv1.Compare_HOLDS, Operator: c.Operator, Lock: words[1], FencingToken: number(t, words[3])}
	case "value":
		c.Target, c.Value = apiv1.Compare_VALUE, []byte(words[3])
		return c
	}
	for i, target := range []string{"mod", "create", "version", "value", "lease"} {
		if words[0] == target {
			c.Target = apiv1.Compare_Target(i)
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

func stepOf(t *testing.T, words []string) *apiv1.TxnStep {
	has := func(option string) bool {
		return strings.Contains(" "+strings.Join(words[2:], " ")+" ", " "+option+" ")
	}
	switch words[0] {
	case "(":
		return nested(branchesOf(t, words[1:len(words)-1]))
	case "put":
		p := &apiv1.TxnPut{Key: []byte(words[1]), Lease: number(t, argument(words, "lease")), PrevKv: has("prev"), KeepValue: has("keep_value"), KeepLease: has("keep_lease")}
		if len(words) > 2 && !p.KeepValue {
			p.Value = []byte(words[2])
		}
		return &apiv1.TxnStep{Step: &apiv1.TxnStep_Put{Put: p}}
	case "del":
		s := coordtest.Delete(spanOf(words[1]))
		s.GetDelete().PrevKv = has("prev")
		return s
	}
	require.Equal(t, "get", words[0])
	r := &apiv1.TxnRange{
		Revision: number(t, argument(words, "at")), Limit: uint32(number(t, argument(words, "limit"))),
		Descending: has("desc"), KeysOnly: has("keys"), CountOnly: has("count"),
		MaxCreateRevision: number(t, argument(words, "max_create")),
	}
	r.Key, r.RangeEnd = coordtest.Ends(spanOf(words[1]))
	for i, order := range []string{"", "version", "create", "mod", "value"} {
		if argument(words, "by") == order {
			r.Order = apiv1.TxnRange_Order(i)
		}
	}
	return &apiv1.TxnStep{Step: &apiv1.TxnStep_Range{Range: r}}
}

// describeTxn returns the result of a transaction as text.
func describeTxn(r ops.TxnResult) string {
	var b strings.Builder
	if r.Succeeded {
		b.WriteString("then\n")
	} else {
		fmt.Fprintf(&b, "else: compare[%d]: %s\n", r.Failed-1, r.Reason)
	}
	describeSteps(&b, "  ", r.Steps)
	return b.String()
}

func describeSteps(b *strings.Builder, indent string, steps []ops.StepResult) {
	for i, s := range steps {
		fmt.Fprintf(b, "%s[%d] %d", indent, i, s.Count)
		for _, kv := range s.Keys {
			fmt.Fprintf(b, " %s=%s", kv.Key, kv.Value)
			fmt.Fprintf(b, "(%d %d %d)", kv.CreateRevision, kv.ModRevision, kv.Version)
		}
		if s.Succeeded {
			b.WriteString(" then")
		}
		b.WriteString("\n")
		describeSteps(b, indent+"  ", s.Steps)
	}
}
