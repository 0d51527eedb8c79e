package archtest

import (
	"go/ast"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// The card is what the project was asked for by name: libraries that do a job, and folders in which a reader finds it. No figure
// is a reason to drop one.

// A tool is a library of the card and its job: a name that product code uses in one room.
type tool struct{ library, room, name string }

func tools() []tool {
	return []tool{
		{"github.com/libp2p/go-libp2p/config", "internal/platform/p2p", "Config"},
		{"github.com/libp2p/go-libp2p-kad-dht", "internal/platform/p2p/routing", "New"},
		{"github.com/libp2p/go-libp2p-pubsub", "internal/platform/p2p", "NewGossipSub"},
		{"github.com/ipfs/go-cid", "pkg/records", "NewCidV1"},
		{"github.com/multiformats/go-multihash", "pkg/records", "Sum"},
		{"github.com/mmcloughlin/geohash", "pkg/geo", "Validate"},
		{"google.golang.org/protobuf/proto", "pkg/records", "Unmarshal"},
	}
}

// A place is a folder of the card, and a name that a reader looks for in it: a function, a type, or a file.
type place struct{ dir, name string }

func places() []place {
	return []place{
		{"cmd/blackholed", "main"},
		{"pkg/discovery", "Start"}, {"pkg/discovery", "Plane.Register"}, {"pkg/discovery", "Plane.Query"}, {"pkg/discovery", "Plane.Watch"},
		{"pkg/records", "Record"}, {"pkg/records", "Seal"}, {"pkg/records", "CellKey.CID"},
		{"pkg/geo", "Cell"}, {"pkg/geo", "CellOf"},
		{"pkg/gossip", "Gossip.Publish"},
		{"proto", "blackhole/discovery/v1/record.proto"},
		{"examples/provider", "main"}, {"examples/consumer", "main"},
		{"testnet", "main"},
	}
}

func TestCard(t *testing.T) {
	m, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range tools() {
		if !slices.ContainsFunc(m.packages, func(p *pkg) bool { return p.dir == l.room && p.names(l.library, l.name) }) {
			t.Errorf("%s does not use %s of %s", l.room, l.name, l.library)
		}
	}
	for _, f := range places() {
		if path.Ext(f.name) == ".proto" {
			if _, err := os.Stat(path.Join("../..", f.dir, f.name)); err != nil {
				t.Error(err)
			}
			continue
		}
		if !slices.ContainsFunc(m.packages, func(p *pkg) bool { return p.dir == f.dir && p.declares(f.name) }) {
			t.Errorf("%s declares no %s", f.dir, f.name)
		}
	}
}

// TestCardSeesAbsence: an import without the name, the name of another library, a method of another type, and tests do not count.
func TestCardSeesAbsence(t *testing.T) {
	m, err := load(files{
		"a/a.go":      "package a\nimport multihash \"github.com/multiformats/go-multihash\"\nvar Code = multihash.SHA2_256\ntype T struct{}\nfunc (t *T) Do() {}\nfunc New() {}\n",
		"a/b.go":      "package a\nimport multihash \"example.com/multihash\"\nvar sum = multihash.Sum(nil)\n",
		"a/a_test.go": "package a\nimport \"github.com/multiformats/go-multihash\"\nvar tested = multihash.Sum(nil)\nfunc Only() {}\n",
		"b/b.go":      "package b\nimport \"github.com/multiformats/go-multihash\"\nvar sum = multihash.Sum(nil)\n",
	}.fs())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range m.packages {
		if got, want := p.names("github.com/multiformats/go-multihash", "Sum"), p.dir == "b"; got != want {
			t.Errorf("%s uses Sum: %v", p.dir, got)
		}
		for name, want := range map[string]bool{"T": true, "T.Do": true, "New": true, "Do": false, "U.Do": false, "Only": false} {
			if p.dir == "a" && p.declares(name) != want {
				t.Errorf("declares %s: %v", name, !want)
			}
		}
	}
}

// names reports whether a file that ships uses something of a library.
func (p *pkg) names(library, wanted string) bool {
	for _, f := range p.shipped() {
		i := slices.IndexFunc(f.ast.Imports, func(s *ast.ImportSpec) bool { return importPath(s) == library })
		if i < 0 {
			continue
		}
		name := strings.TrimPrefix(path.Base(library), "go-")
		if alias := f.ast.Imports[i].Name; alias != nil {
			name = alias.Name
		}
		found := false
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == wanted {
				id, _ := sel.X.(*ast.Ident)
				found = found || id != nil && id.Name == name
			}
			return !found
		})
		if found {
			return true
		}
	}
	return false
}

// declares reports whether a file that ships declares a function, a type, or a method Type.Name.
func (p *pkg) declares(name string) bool {
	for _, f := range p.shipped() {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				full := d.Name.Name
				if d.Recv != nil {
					of := d.Recv.List[0].Type
					if star, ok := of.(*ast.StarExpr); ok {
						of = star.X
					}
					id, _ := of.(*ast.Ident)
					if id == nil {
						continue
					}
					full = id.Name + "." + full
				}
				if full == name {
					return true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if t, ok := s.(*ast.TypeSpec); ok && t.Name.Name == name {
						return true
					}
				}
			}
		}
	}
	return false
}
