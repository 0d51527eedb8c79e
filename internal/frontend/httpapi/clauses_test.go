package httpapi

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
	"github.com/blackhole/blackhole/pkg/query"
)

// TestFieldsOfClauses: the documentation and the OpenAPI document have exactly the fields.
func TestFieldsOfClauses(t *testing.T) {
	text, err := os.ReadFile("../../../docs/api.md")
	require.NoError(t, err)
	_, list, ok := strings.Cut(string(text), "The fields:\n\n")
	require.True(t, ok)
	list, _, _ = strings.Cut(list, "\n\n")
	taken := map[string]string{ // by kind
		"label": "any prefix range stated", "number": "any range stated", "text": "any prefix stated", "texts": "any all prefix stated", "flag": "any",
	}
	var rows, names []string
	for _, f := range query.Fields() {
		kind, ops := string(f.Kind), make([]string, len(f.Ops()))
		for i, op := range f.Ops() {
			ops[i] = string(op)
		}
		if kind == "text" && slices.Contains(ops, "all") {
			kind = "texts"
		}
		require.Equal(t, taken[kind], strings.Join(ops, " "), f.Name)
		if f.Unit != "" {
			kind += ", " + f.Unit
		}
		rows = append(rows, "- `"+f.Name+"` ("+kind+"): "+f.Help)
		if !strings.HasSuffix(f.Name, "KEY") {
			names = append(names, f.Name)
		}
	}
	require.Equal(t, rows, strings.Split(list, "\n"))

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
