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
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
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
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		text, err := file.Read(r.Console, "FILE", strings.Join(args, ""), maxTxnText)
		if err != nil {
			return err
		}
		txn, err := parseTxn(string(text))
		if err != nil {
			return err
		}
		result, err := execute(ctx, c, txn)
		if err != nil {
			return err
		}
		return r.Print(txnDocument(txn, result))
	})
}

// parseTxn reads the text of a transaction. Errors name the line.
func parseTxn(text string) (*apiv1.TxnRequest, error) {
	txn := &apiv1.TxnRequest{}
	part := 0
	for i, line := range strings.Split(text, "\n") {
		words, err := splitWords(line)
		switch {
		case err == nil && len(words) == 0:
			part++
			continue
		case err != nil:
		case part == 0:
			var c *apiv1.Compare
			c, err = parseCompare(line)
			txn.Compare = append(txn.Compare, c)
		case part > 2:
			err = fault.Invalidf("", nil, "follows the third part: comparisons, steps and other steps are separated by one empty line each")
		default:
			var s *apiv1.TxnStep
			s, err = parseStep(words)
			if part == 1 {
				txn.Then = append(txn.Then, s)
			} else {
				txn.Else = append(txn.Else, s)
			}
		}
		if err != nil {
			return nil, fault.In(fmt.Sprintf("line %d", i+1), err)
		}
	}
	return txn, nil
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
func parseCompare(line string) (*apiv1.Compare, error) {
	target, rest, found := strings.Cut(strings.TrimSpace(line), "(")
	if !found {
		return nil, fault.Invalidf("", nil, "must be a comparison such as mod(\"KEY\") = \"0\"; begin with an empty line for none")
	}
	// The parts between the parentheses may be quoted, and contain any of the separators.
	inner, after, err := parenthesis(rest)
	if err != nil {
		return nil, err
	}
	words, err := splitWords(after)
	if err != nil {
		return nil, err
	}
	if len(words) != 2 {
		return nil, fault.Invalidf("", nil, "needs an operator and the right side after the parenthesis")
	}
	operators := map[string]apiv1.Compare_Operator{
		"=": apiv1.Compare_EQUAL, "!=": apiv1.Compare_NOT_EQUAL, "<": apiv1.Compare_LESS, ">": apiv1.Compare_GREATER,
	}
	operator, known := operators[words[0]]
	if !known {
		return nil, fault.Invalidf("operator", words[0], "must be =, !=, < or >")
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

func compareWith(target string, inner []string, operator apiv1.Compare_Operator, right string) (*apiv1.Compare, error) {
	c := &apiv1.Compare{Operator: operator}
	if target == "holds" && len(inner) == 1 {
		token, err := strconv.ParseInt(right, 10, 64)
		if err != nil {
			return c, fault.Invalidf("fencing_token", right, "must be a number")
		}
		c.Target, c.Lock, c.FencingToken = apiv1.Compare_HOLDS, inner[0], token
		return c, nil
	}
	targets := map[string]apiv1.Compare_Target{
		"m": apiv1.Compare_MOD_REVISION, "mod": apiv1.Compare_MOD_REVISION, "c": apiv1.Compare_CREATE_REVISION, "create": apiv1.Compare_CREATE_REVISION,
		"ver": apiv1.Compare_VERSION, "version": apiv1.Compare_VERSION, "val": apiv1.Compare_VALUE, "value": apiv1.Compare_VALUE, "lease": apiv1.Compare_LEASE,
	}
	known := false
	if c.Target, known = targets[target]; !known {
		return c, fault.Invalidf("target", target, "must be mod, create, version, value, lease or holds")
	}
	prefix := len(inner) == 2 && inner[1] == "--prefix"
	if prefix {
		inner = inner[:1]
	}
	var err error
	if c.Key, c.RangeEnd, err = spanOfWords(inner, prefix); err != nil {
		return nil, err
	}
	switch c.Target {
	case apiv1.Compare_VALUE:
		c.Value = []byte(right)
		return c, nil
	case apiv1.Compare_LEASE:
		if right != "0" {
			var id coord.LeaseID
			id, err = ParseLease(right)
			c.Number = int64(id)
		}
		return c, err
	}
	if c.Number, err = strconv.ParseInt(right, 10, 64); err != nil {
		return nil, fault.Invalidf(strings.ToLower(c.Target.String()), right, "must be a number")
	}
	return c, nil
}

// spanOfWords returns the bounds of KEY [RANGE_END].
func spanOfWords(words []string, prefix bool) (key, end []byte, err error) {
	switch {
	case len(words) == 0 || len(words) > 2 || len(words) == 2 && prefix:
		return nil, nil, fault.Invalidf("KEY", nil, "must be given, with at most a RANGE_END or --prefix")
	case prefix:
		key, end = coord.Under(words[0]).Bounds()
		return key, end, nil
	case len(words) == 2:
		return []byte(words[0]), []byte(words[1]), nil
	case words[0] == "":
		return nil, nil, fault.Invalidf("KEY", nil, "is missing")
	}
	return []byte(words[0]), nil, nil
}

// parseStep reads a put, a del or a get with its flags.
func parseStep(words []string) (*apiv1.TxnStep, error) {
	flags := pflag.NewFlagSet(words[0], pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var finish func(args []string) (*apiv1.TxnStep, error)
	switch words[0] {
	case "put":
		finish = putStep(flags)
	case "del":
		finish = deleteStep(flags)
	case "get":
		finish = getStep(flags)
	default:
		return nil, fault.Invalidf("", nil, "must begin with put, get or del, not %q", words[0])
	}
	if err := flags.Parse(words[1:]); err != nil {
		return nil, fault.Invalidf("", nil, "%v", err)
	}
	return finish(flags.Args())
}

func putStep(flags *pflag.FlagSet) func([]string) (*apiv1.TxnStep, error) {
	lease := flags.String("lease", "", "")
	prev := flags.Bool("prev-kv", false, "")
	return func(args []string) (*apiv1.TxnStep, error) {
		if len(args) != 2 {
			return nil, fault.Invalidf("KEY", nil, "and VALUE must be given: quote a value with spaces")
		}
		put := &apiv1.TxnPut{Key: []byte(args[0]), Value: []byte(args[1]), PrevKv: *prev}
		if *lease != "" {
			id, err := ParseLease(*lease)
			if err != nil {
				return nil, exit.Rename(err, "--lease")
			}
			put.Lease = int64(id)
		}
		return &apiv1.TxnStep{Step: &apiv1.TxnStep_Put{Put: put}}, nil
	}
}

func deleteStep(flags *pflag.FlagSet) func([]string) (*apiv1.TxnStep, error) {
	prefix := flags.Bool("prefix", false, "")
	prev := flags.Bool("prev-kv", false, "")
	return func(args []string) (*apiv1.TxnStep, error) {
		key, end, err := spanOfWords(args, *prefix)
		return &apiv1.TxnStep{Step: &apiv1.TxnStep_Delete{Delete: &apiv1.TxnDelete{Key: key, RangeEnd: end, PrevKv: *prev}}}, err
	}
}

func getStep(flags *pflag.FlagSet) func([]string) (*apiv1.TxnStep, error) {
	read := &apiv1.TxnRange{}
	prefix := flags.Bool("prefix", false, "")
	order := flags.String("order", "key", "")
	flags.Int64Var(&read.Revision, "rev", 0, "")
	limit := flags.Int("limit", 0, "")
	flags.BoolVar(&read.Descending, "descend", false, "")
	flags.BoolVar(&read.KeysOnly, "keys-only", false, "")
	flags.BoolVar(&read.CountOnly, "count-only", false, "")
	return func(args []string) (_ *apiv1.TxnStep, err error) {
		if read.Order, err = parseOrder("--order", *order); err != nil {
			return nil, err
		}
		if read.Limit, err = parseLimit(*limit); err != nil {
			return nil, err
		}
		read.Key, read.RangeEnd, err = spanOfWords(args, *prefix)
		return &apiv1.TxnStep{Step: &apiv1.TxnStep_Range{Range: read}}, err
	}
}

// txnDocument shows the branch that was executed, and the result of each of its steps.
func txnDocument(txn *apiv1.TxnRequest, r *apiv1.TxnResponse) term.Document {
	var b strings.Builder
	branch := txn.GetThen()
	if r.GetSucceeded() {
		b.WriteString("SUCCESS\n")
	} else {
		branch = txn.GetElse()
		fmt.Fprintf(&b, "FAILURE: comparison %d: %s\n", r.GetFailed(), term.Clean(r.GetReason()))
	}
	revision := r.GetHeader().GetRevision()
	fmt.Fprintf(&b, "revision %d\n", revision)
	results := make([]stepResult, len(r.GetResults()))
	for i, result := range r.GetResults() {
		var step *apiv1.TxnStep
		if i < len(branch) {
			step = branch[i]
		}
		kind := "get"
		if step.GetPut() != nil {
			kind = "put"
		} else if step.GetDelete() != nil {
			kind = "del"
		}
		fmt.Fprintf(&b, "\n%s: %d\n", kind, result.GetCount())
		results[i].Count = result.GetCount()
		for _, one := range result.GetKvs() {
			kv := coord.KeyValueOf(one)
			line := kv.Key
			if !step.GetRange().GetKeysOnly() {
				line += "  " + valueText(kv.Value)
			}
			b.WriteString(term.Clean(line) + "\n")
			results[i].Keys = append(results[i].Keys, kv)
		}
	}
	if r.GetForgotten() {
		b.WriteString("\nThe results were too large to be kept for a repetition after a failure of the leader: read the keys again.\n")
	}
	return term.Document{
		Value: struct {
			Revision  int64        `json:"revision"`
			Changed   uint32       `json:"changed"`
			Succeeded bool         `json:"succeeded"`
			Results   []stepResult `json:"results"`
			Failed    uint32       `json:"failed,omitempty"`
			Reason    string       `json:"reason,omitempty"`
			Forgotten bool         `json:"forgotten,omitempty"`
		}{revision, r.GetChanged(), r.GetSucceeded(), results, r.GetFailed(), r.GetReason(), r.GetForgotten()},
		Table: term.Plain(b.String()),
	}
}

// stepResult is the result of a step as the program shows it.
type stepResult struct {
	Count int64             `json:"count"`
	Keys  []*coord.KeyValue `json:"kvs,omitempty"`
}
