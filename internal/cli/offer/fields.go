package offer

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/query"
)

// clauses is the type of flags that add clauses to a query: --where in text form, and the flags of
// common fields, which contain the field and the operator.
type clauses struct {
	to    *[]query.Clause
	begin string // field and operator; "" for a whole clause
	name  string // of the type in help texts
}

// String implements pflag.Value.
func (c *clauses) String() string { return "" }

// Type implements pflag.Value.
func (c *clauses) Type() string { return c.name }

// Set implements pflag.Value.
func (c *clauses) Set(s string) error {
	parsed, err := query.ParseClause(c.begin + s)
	if err == nil {
		err = parsed.Check()
	}
	if err != nil {
		return err
	}
	*c.to = append(*c.to, parsed)
	return nil
}

// commonClauses lists the flags of common fields.
func commonClauses() []struct{ flag, begin, name, usage string } {
	return []struct{ flag, begin, name, usage string }{
		{"gpu-model", "compute.gpus.model^=", "LIST", "GPU whose model begins so: H100,A100"},
		{"gpu-memory-mb", "compute.gpus.memory_mb>=", "MB", "minimum memory of a GPU"},
		{"gpus", "compute.gpus.count>=", "N", "minimum number of such GPUs"},
		{"engine", "compute.runtime_engines=", "LIST", "runtime engine: docker, wasm, ..."},
		{"storage-class", "storage.storage_classes=", "LIST", "storage class: hot, cold, archive, ..."},
		{"cdn-region", "cdn.regions=", "LIST", "region served by a CDN"},
		{"exit-country", "bandwidth.exit_countries=", "LIST", "country of an exit: DE,FR"},
		{"tunnel", "bandwidth.protocols=", "LIST", "protocol of a bandwidth service: wireguard, openvpn, ..."},
		{"protocol", "protocols=", "LIST", "protocol of the endpoints: https, grpc, ..."},
	}
}

// addClauses adds the flags of clauses.
func addClauses(cmd *cobra.Command, to *[]query.Clause) {
	f := cmd.Flags()
	f.Var(&clauses{to: to, name: "CLAUSE"}, "where",
		"test of a field: compute.gpus.memory_mb>=24000, location.country!=DE, ... (repeat; see "+command.Program+" offer fields)")
	command.CompleteBy(cmd, "where", func(_ *cobra.Command, _ []string, begun string) (names []string, _ cobra.ShellCompDirective) {
		for _, x := range query.Fields() {
			if strings.HasPrefix(x.Name, begun) {
				names = append(names, x.Name+"\t"+x.Help)
			}
		}
		return names, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	})
	for _, c := range commonClauses() {
		f.Var(&clauses{to: to, begin: c.begin, name: c.name}, c.flag, c.usage)
	}
}

// fieldView is the JSON form of a field of records.
type fieldView struct {
	Name string     `json:"name"`
	Kind query.Kind `json:"kind"`
	Unit string     `json:"unit,omitempty"`
	Ops  []query.Op `json:"ops"`
	Help string     `json:"help"`
}

func offerFields(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "fields", Short: "Show the fields that --where can test", Args: command.NoArgs,
		Long: "Show the fields that --where can test.\n\n" +
			"  FIELD=A,B       one of these            FIELD&=A,B   all of these\n" +
			"  FIELD^=A,B      begins with one of these\n" +
			"  FIELD>=N        also <=N and >=N<=M     FIELD        stated, or true\n\n" +
			"A \"!\" before the operator, or before the field alone, negates. A record that does not\n" +
			"state the field fails every test, negated ones too; FIELD?!=A lets it pass.\n" +
			"Tests of GPUs are met by one GPU together.",
	}
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(*cobra.Command, []string) error {
		var list []fieldView
		var rows [][]string
		for _, x := range query.Fields() {
			ops := make([]string, len(x.Ops()))
			for i, op := range x.Ops() {
				ops[i] = string(op)
			}
			list = append(list, fieldView{x.Name, x.Kind, x.Unit, x.Ops(), x.Help})
			rows = append(rows, []string{x.Name, string(x.Kind), term.OrDash(x.Unit), strings.Join(ops, " "), x.Help})
		}
		return f.Print(con, term.Document{
			Value: map[string]any{"fields": list}, Items: term.Items(list),
			Table: term.Table([]string{"FIELD", "KIND", "UNIT", "OPERATIONS", "MEANING"}, rows),
		})
	}
	return cmd
}
