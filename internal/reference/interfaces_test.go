package reference_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
)

// httpPage lists the operations of the OpenAPI document.
func httpPage(t *testing.T) string {
	t.Helper()
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	require.NoError(t, json.Unmarshal([]byte(openapi.Document()), &document))
	paths := document.Paths
	b := begin("HTTP operations", "Every peer serves the document with schemas and examples at `/openapi.json`; [api.md](../api.md) explains it. The smallest [role](../security.md) stands\nin parentheses. A path with a name has a twin that takes it [in the query](../api.md#leases-locks-keys-and-watches).")
	tags := map[string][][]string{}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		for _, method := range []string{"get", "put", "post", "delete"} {
			raw, ok := paths[path][method]
			if !ok {
				continue
			}
			var o struct {
				Summary string
				Tags    []string
				Role    string `json:"x-role"`
			}
			require.NoError(t, json.Unmarshal(raw, &o))
			require.NotEmpty(t, o.Tags, path)
			if strings.HasSuffix(o.Summary, ", named in the query") {
				continue
			}
			tags[o.Tags[0]] = append(tags[o.Tags[0]], []string{strings.ToUpper(method), path, o.Summary, o.Role})
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		b.WriteString("\n## " + tag + "\n")
		last := ""
		for _, r := range tags[tag] {
			lead := "; "
			if r[1] != last {
				lead = "\n- " + code(r[1]) + ": "
			}
			last = r[1]
			b.WriteString(lead + r[0] + " (" + r[3] + ") " + cell(r[2]))
		}
		b.WriteString("\n")
	}
	return b.String()
}
