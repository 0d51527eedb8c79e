package httpapi

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
	"github.com/blackhole/blackhole/pkg/query"
)

// TestFieldsOfClauses: the documentation and the OpenAPI document have exactly the table of fields.
func TestFieldsOfClauses(t *testing.T) {
	text, err := os.ReadFile("../../../docs/api.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "| field | kind and unit | operations | meaning |\n|---|---|---|---|\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
	var rows, names []string
	for _, f := range query.Fields() {
		kind, ops := string(f.Kind), make([]string, len(f.Ops()))
		for i, op := range f.Ops() {
			ops[i] = string(op)
		}
		if f.Unit != "" {
			kind += ", " + f.Unit
		}
		rows = append(rows, "| `"+f.Name+"` | "+kind+" | "+strings.Join(ops, " ")+" | "+f.Help+" |")
		if !strings.HasSuffix(f.Name, "KEY") {
			names = append(names, f.Name)
		}
	}
	require.Equal(t, rows, strings.Split(table, "\n"))

	var document struct {
		Components struct {
			Schemas struct {
				Clause struct {
					Properties struct {
						Field struct{ AnyOf []struct{ Enum []string } }
					}
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(openapi.Document()), &document))
	require.Equal(t, names, document.Components.Schemas.Clause.Properties.Field.AnyOf[1].Enum)
}
