package httpapi

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
	queries "github.com/blackhole/blackhole/internal/query"
)

// TestFieldsOfClauses: the documentation and the OpenAPI document have exactly the fields.
func TestFieldsOfClauses(t *testing.T) {
	text, err := os.ReadFile("../../../docs/api.md")
	require.NoError(t, err)
	kinds, names := map[string][]string{}, []string(nil) // fields by kind and operations
	for _, f := range queries.Fields() {
		kind, ops := string(f.Kind), make([]string, len(f.Ops()))
		for i, op := range f.Ops() {
			ops[i] = string(op)
		}
		if kind == "text" && slices.Contains(ops, "all") {
			kind = "texts"
		}
		line := "- " + kind + " (`" + strings.Join(ops, " ") + "`): `"
		kinds[line] = append(kinds[line], f.Name)
		if !strings.HasSuffix(f.Name, "KEY") {
			names = append(names, f.Name)
		}
	}
	require.Len(t, kinds, 6)
	for line, fields := range kinds {
		require.Contains(t, string(text), "\n"+line+strings.Join(fields, "`, `")+"`\n")
	}

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
