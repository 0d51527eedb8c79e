package coordination

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxTxnText bounds the text of a transaction. The group's own limit is lower.
const maxTxnText = 8 << 20

func kvTxn(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "txn [FILE]", Short: "Compare keys, and then read and change keys at once", Args: command.AtMostOne("FILE"),
		Long: "Execute a transaction: the text in FILE, or in standard input without FILE or with -. It has three parts, with\n" +
			"an empty line after the first and the second, as for etcdctl: comparisons, steps if all of them hold, steps\n" +
			"otherwise. All changes have one revision. The exit code is 0 for both branches.\n\n" +
			"Comparisons: TARGET(\"KEY\") OPERATOR \"X\" with mod, create, version, value or lease, and =, !=, < or >;\n" +
			"holds(\"LOCK\") = \"TOKEN\" for a fencing token. KEY may have a second part: \"RANGE_END\" or --prefix.\n" +
			"Steps: put KEY VALUE [--lease ID] [--prev-kv]; del KEY [RANGE_END] [--prefix] [--prev-kv];\n" +
			"get KEY [RANGE_END] [--prefix] [--limit N] [--rev N] [--order ORDER] [--descend] [--keys-only] [--count-only]\n" +
			"with the orders key, version, create, mod and value. A file that makes a key unless it exists:\n\n" +
			"    mod(\"app/config\") = \"0\"\n\n" +
			"    put app/config blue\n\n" +
			"    get app/config",
		Example: "  " + command.Program + " kv txn create.txt\n" +
			"  " + command.Program + " kv txn -o json < create.txt",
	}
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *client.Client, args []string) error {
		text, err := file.Read(r.Console, "FILE", strings.Join(args, ""), maxTxnText)
		if err != nil {
			return err
		}
		op, err := parseTxn(string(text))
		if err != nil {
			return err
		}
		result, err := execute(ctx, c, op)
		if err != nil {
			return err
		}
		return r.Print(txnDocument(op, result))
	})
}

// parseTxn reads the text of a transaction. Errors name the line.
func parseTxn(text string) (*coord.Txn, error) {
	o := &coord.Txn{}
	part := 0
	for i, line := range strings.Split(text, "\n") {
		words, err := splitWords(line)
		switch {
		case err == nil && len(words) == 0:
			part++
			continue
		case err != nil:
		case part == 0:
			var c coord.Compare
			c, err = parseCompare(line)
			o.If = append(o.If, c)
		case part > 2:
			err = fault.Invalidf("", nil, "follows the third part: comparisons, steps and other steps are separated by one empty line each")
		default:
			var s coord.Step
			s, err = parseStep(words)
			if part == 1 {
				o.Then = append(o.Then, s)
			} else {
				o.Else = append(o.Else, s)
			}
		}
		if err != nil {
			return nil, fault.In(fmt.Sprintf("line %d", i+1), err)
		}
	}
	return o, nil
}

// splitWords cuts a line into words. A word in double quotes has the escapes of Go and JSON, one in single quotes none.
func splitWords(line string) (words []string, err error) {
	for rest := strings.TrimSpace(line); rest != ""; rest = strings.TrimLeft(rest, " \t\r") {
		var word string
		switch rest[0] {
		case '"':
			quoted, err := strconv.QuotedPrefix(rest)
			if err == nil {
				word, err = strconv.Unquote(quoted)
			}
			if err != nil {
				return nil, fault.Invalidf("", nil, "has a text without its closing quote, or with an unknown escape: %s", rest)
			}
			rest = rest[len(quoted):]
		case '\'':
			end := strings.IndexByte(rest[1:], '\'')
			if end < 0 {
				return nil, fault.Invalidf("", nil, "has a text without its closing quote: %s", rest)
			}
			word, rest = rest[1:end+1], rest[end+2:]
		default:
			end := strings.IndexAny(rest, " \t\r")
			if end < 0 {
				end = len(rest)
			}
			word, rest = rest[:end], rest[end:]
		}
		words = append(words, word)
	}
	return words, nil
}

// parseCompare reads TARGET("KEY"[, "RANGE_END" | --prefix]) OPERATOR "X".
func parseCompare(line string) (c coord.Compare, err error) {
	target, rest, found := strings.Cut(strings.TrimSpace(line), "(")
	if !found {
		return c, fault.Invalidf("", nil, "must be a comparison such as mod(\"KEY\") = \"0\"; begin with an empty line for none")
	}
	// The parts between the parentheses may be quoted, and contain any of the separators.
	inner, after, err := parenthesis(rest)
	if err != nil {
		return c, err
	}
	words, err := splitWords(after)
	if err != nil {
		return c, err
	}
	if len(words) != 2 {
		return c, fault.Invalidf("", nil, "needs an operator and the right side after the parenthesis")
	}
	operators := map[string]coord.Operator{"=": coord.Equal, "!=": coord.NotEqual, "<": coord.Less, ">": coord.Greater}
	operator, known := operators[words[0]]
	if !known {
		return c, fault.Invalidf("operator", words[0], "must be =, !=, < or >")
	}
	return compareWith(strings.TrimSpace(target), inner, operator, words[1])
}

// parenthesis returns the words up to the closing parenthesis, and the rest of the line.
func parenthesis(rest string) (words []string, after string, err error) {
	for {
		rest = strings.TrimLeft(rest, " \t,")
		end := strings.IndexAny(rest, ",)")
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, "", fault.Invalidf("", nil, "has a text without its closing quote")
			}
			end = len(quoted)
		}
		if end < 0 {
			return nil, "", fault.Invalidf("", nil, "lacks a closing parenthesis")
		}
		word, err := splitWords(rest[:end])
		if err != nil {
			return nil, "", err
		}
		words = append(words, strings.Join(word, " "))
		if rest = strings.TrimLeft(rest[end:], " \t"); strings.HasPrefix(rest, ")") {
			return words, rest[1:], nil
		}
	}
}

func compareWith(target string, inner []string, operator coord.Operator, right string) (c coord.Compare, err error) {
	c.Operator = operator
	if target == "holds" && len(inner) == 1 {
		token, err := strconv.ParseInt(right, 10, 64)
		if err != nil {
			return c, fault.Invalidf("fencing_token", right, "must be a number")
		}
		c.Target, c.Lock, c.Token = coord.Holds, inner[0], coord.Token(token)
		return c, nil
	}
	targets := map[string]coord.Target{
		"m": coord.ModRevision, "mod": coord.ModRevision, "c": coord.CreateRevision, "create": coord.CreateRevision, "ver": coord.Version,
		"version": coord.Version, "val": coord.Value, "value": coord.Value, "lease": coord.LeaseOf,
	}
	known := false
	if c.Target, known = targets[target]; !known {
		return c, fault.Invalidf("target", target, "must be mod, create, version, value, lease or holds")
	}
	prefix := len(inner) == 2 && inner[1] == "--prefix"
	if prefix {
		inner = inner[:1]
	}
	if c.Span, err = spanOfWords(inner, prefix); err != nil {
		return c, err
	}
	switch c.Target {
	case coord.Value:
		c.Value = right
		return c, nil
	case coord.LeaseOf:
		if right != "0" {
			var id coord.LeaseID
			id, err = ParseLease(right)
			c.Number = int64(id)
		}
		return c, err
	}
	if c.Number, err = strconv.ParseInt(right, 10, 64); err != nil {
		return c, fault.Invalidf(c.Target.String(), right, "must be a number")
	}
	return c, nil
}

// spanOfWords returns the span of KEY [RANGE_END].
func spanOfWords(words []string, prefix bool) (coord.Span, error) {
	switch {
	case len(words) == 0 || len(words) > 2 || len(words) == 2 && prefix:
		return coord.Span{}, fault.Invalidf("KEY", nil, "must be given, with at most a RANGE_END or --prefix")
	case prefix:
		return coord.Under(words[0]), nil
	case len(words) == 2:
		return coord.SpanOf([]byte(words[0]), []byte(words[1])), nil
	case words[0] == "":
		return coord.Span{}, fault.Invalidf("KEY", nil, "is missing")
	}
	return coord.Exactly(words[0]), nil
}

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

// txnDocument shows the branch that was executed, and the result of each of its steps.
func txnDocument(op *coord.Txn, r coord.Result) term.Document {
	var b strings.Builder
	branch := op.Then
	if r.Txn.Succeeded {
		b.WriteString("SUCCESS\n")
	} else {
		branch = op.Else
		fmt.Fprintf(&b, "FAILURE: comparison %d: %s\n", r.Txn.Failed, r.Txn.Reason)
	}
	fmt.Fprintf(&b, "revision %d\n", r.Revision)
	for i, s := range r.Txn.Steps {
		step := coord.Step{Read: &coord.Read{}}
		if i < len(branch) {
			step = branch[i]
		}
		kind := "get"
		if step.Put != nil {
			kind = "put"
		} else if step.Delete != nil {
			kind = "del"
		}
		fmt.Fprintf(&b, "\n%s: %d\n", kind, s.Count)
		for _, kv := range s.Keys {
			line := kv.Key
			if step.Read == nil || !step.Read.KeysOnly {
				line += "  " + valueText(kv)
			}
			b.WriteString(term.Clean(line) + "\n")
		}
	}
	if r.Txn.Forgotten {
		b.WriteString("\nThe results were too large to be kept for a repetition after a failure of the leader: read the keys again.\n")
	}
	r.Txn.Steps = term.Emptied(r.Txn.Steps)
	return term.Document{
		Value: struct {
			Revision coord.Revision `json:"revision"`
			Changed  int            `json:"changed"`
			coord.TxnResult
		}{r.Revision, r.Changed, r.Txn},
		Table: term.Plain(b.String()),
	}
}
