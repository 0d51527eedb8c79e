package records

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"

	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of a YAML file of offers.
const (
	maxYAML      = 1 << 20 // bytes
	maxYAMLNodes = 50_000  // with aliases written out
	maxYAMLDepth = 16      // of one offer; its schema needs 6
)

// ParseOfferYAML reads exactly one offer from YAML, under the rules of ParseOffer.
func ParseOfferYAML(data []byte) (Offer, error) {
	offers, err := ParseOffersYAML(data)
	if err != nil {
		return Offer{}, err
	}
	if len(offers) != 1 {
		return Offer{}, fault.Wrap("records.ParseOfferYAML", fault.Invalidf("", nil, "must be one offer, not %d", len(offers)))
	}
	return offers[0], nil
}

// ParseOffersYAML reads offers from YAML, under the rules of ParseOffer: any number of
// documents, each an offer or a list of offers; empty documents count for none. When
// there is more than one, errors name them as "[0]", "[1]" and so on in their order.
// Scalars are as written: version: 1.0 is a number and not a string, and an error says so.
func ParseOffersYAML(data []byte) ([]Offer, error) {
	const op = "records.ParseOffersYAML"
	if len(data) > maxYAML {
		return nil, fault.New(op, fault.TooLarge, "%d bytes of offers are above the bound of %d", len(data), maxYAML)
	}
	nodes, single, err := offerNodes(data)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	offers := make([]Offer, 0, len(nodes))
	t := &tree{nodes: maxYAMLNodes}
	for i, node := range nodes {
		o, err := t.offer(node)
		if err != nil && !single {
			err = fault.In(index(i), err)
		}
		if err != nil {
			return nil, fault.Wrap(op, err)
		}
		offers = append(offers, o)
	}
	return offers, nil
}

// offerNodes finds the offers in all documents; single says that there is one and no list.
func offerNodes(data []byte) (nodes []*yaml.Node, single bool, err error) {
	single = true
	for documents := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var document yaml.Node
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return nodes, single && len(nodes) == 1, nil
		}
		if err != nil {
			return nil, false, fault.Invalidf("", nil, "is not YAML: %w", err)
		}
		for _, root := range document.Content {
			switch {
			case root.Kind == yaml.SequenceNode:
				nodes = append(nodes, root.Content...)
				single = false
			case root.ShortTag() != "!!null":
				nodes = append(nodes, root)
			}
		}
	}
}

// tree turns YAML nodes into what json.Marshal can write.
type tree struct {
	nodes int // how many more are allowed
	depth int // of the node at hand; its bound also ends an alias that contains itself
}

func (t *tree) offer(node *yaml.Node) (Offer, error) {
	v, err := t.value(node)
	if err != nil {
		return Offer{}, err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return Offer{}, fault.As("", fault.Internal, err)
	}
	return parseOffer(text)
}

func (t *tree) value(node *yaml.Node) (any, error) {
	if t.nodes--; t.nodes < 0 {
		return nil, fault.New("", fault.TooLarge, "more than %d values with aliases written out", maxYAMLNodes)
	}
	if t.depth++; t.depth > maxYAMLDepth {
		return nil, fault.Invalidf("", nil, "line %d: is nested deeper than %d", node.Line, maxYAMLDepth)
	}
	defer func() { t.depth-- }()
	switch node.Kind {
	case yaml.AliasNode:
		return t.value(node.Alias)
	case yaml.SequenceNode:
		return t.list(node)
	case yaml.MappingNode:
		return t.object(node)
	default:
		return scalar(node)
	}
}

func (t *tree) list(node *yaml.Node) (any, error) {
	items := make([]any, 0, len(node.Content))
	for i, child := range node.Content {
		item, err := t.value(child)
		if err != nil {
			return nil, fault.In(index(i), err)
		}
		items = append(items, item)
	}
	return items, nil
}

func (t *tree) object(node *yaml.Node) (any, error) {
	fields := make(object, 0, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		name := node.Content[i]
		if name.Kind != yaml.ScalarNode {
			return nil, fault.Invalidf("", nil, "line %d: a name must be a scalar", name.Line)
		}
		value, err := t.value(node.Content[i+1])
		if err != nil {
			return nil, fault.In(name.Value, err)
		}
		fields = append(fields, entry{name.Value, value})
	}
	return fields, nil
}

// object is a YAML mapping that keeps the order of its fields, and their repetition, for
// the JSON parser to judge.
type object []entry

type entry struct {
	name  string
	value any
}

// MarshalJSON writes the fields as they stand.
func (o object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, e := range o {
		if i > 0 {
			b = append(b, ',')
		}
		name, err := json.Marshal(e.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(e.value)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, name...), ':'), value...)
	}
	return append(b, '}'), nil
}

// scalar resolves numbers, booleans and null; all else, times too, stays text. So
// do numbers that JSON lacks (.nan, .inf), for the parser to refuse where it expects one.
func scalar(node *yaml.Node) (any, error) {
	switch node.ShortTag() {
	case "!!null":
		return nil, nil
	case "!!int", "!!float", "!!bool":
		var v any
		if err := node.Decode(&v); err != nil {
			return nil, fault.Invalidf("", nil, "line %d: %w", node.Line, err)
		}
		if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			return node.Value, nil
		}
		return v, nil
	default:
		return node.Value, nil
	}
}
