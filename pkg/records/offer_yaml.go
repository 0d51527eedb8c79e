package records

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/internal/platform/jsonform"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Limits of a YAML file of offers.
const (
	maxYAML      = 1 << 20 // bytes
	maxYAMLNodes = 50_000  // aliases counted in full
	maxYAMLDepth = 16      // of one offer; its schema needs 6
)

// ParseOffersYAML reads offers from YAML, under the rules of ParseOffer: any number of
// documents, each an offer or a list of offers. It skips empty documents. Errors name several
// offers as "[0]", "[1]" and so on in their order. Scalars keep their YAML type: version: 1.0 is
// a number and therefore an error.
func ParseOffersYAML(data []byte) ([]Offer, error) {
	const op = "records.ParseOffersYAML"
	if len(data) > maxYAML {
		return nil, fault.New(op, fault.TooLarge, "%d bytes of offers exceed the limit of %d", len(data), maxYAML)
	}
	nodes, single, err := offerNodes(data)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	offers := make([]Offer, 0, len(nodes))
	t := &transcript{nodes: maxYAMLNodes}
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

// offerNodes returns the offers in all documents. single means one offer outside a list.
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

// transcript is the JSON text of YAML nodes, as input for parseOffer. It keeps repeated names,
// which parseOffer refuses.
type transcript struct {
	text  []byte
	nodes int // remaining number of values
	depth int // of the current value; the limit also stops an alias that contains itself
}

// offer reads the offer at a node.
func (t *transcript) offer(node *yaml.Node) (Offer, error) {
	t.text = t.text[:0]
	if err := t.value(node); err != nil {
		return Offer{}, err
	}
	return parseOffer(t.text)
}

// value appends a node.
func (t *transcript) value(node *yaml.Node) error {
	if t.nodes--; t.nodes < 0 {
		return fault.New("", fault.TooLarge, "more than %d values, aliases counted in full", maxYAMLNodes)
	}
	if t.depth++; t.depth > maxYAMLDepth {
		return fault.Invalidf("", nil, "line %d: nested deeper than %d", node.Line, maxYAMLDepth)
	}
	defer func() { t.depth-- }()
	switch node.Kind {
	case yaml.AliasNode:
		return t.value(node.Alias)
	case yaml.SequenceNode:
		return t.list(node.Content)
	case yaml.MappingNode:
		return t.object(node.Content)
	default:
		return t.scalar(node)
	}
}

func (t *transcript) list(items []*yaml.Node) error {
	t.text = append(t.text, '[')
	for i, item := range items {
		if i > 0 {
			t.text = append(t.text, ',')
		}
		if err := t.value(item); err != nil {
			return err
		}
	}
	t.text = append(t.text, ']')
	return nil
}

// object appends a mapping of alternating names and values.
func (t *transcript) object(nodes []*yaml.Node) error {
	t.text = append(t.text, '{')
	for i := 0; i+1 < len(nodes); i += 2 {
		name := nodes[i]
		if name.Kind != yaml.ScalarNode {
			return fault.Invalidf("", nil, "line %d: a name must be a scalar", name.Line)
		}
		if i > 0 {
			t.text = append(t.text, ',')
		}
		t.text = append(jsonform.AppendString(t.text, name.Value), ':')
		if err := t.value(nodes[i+1]); err != nil {
			return err
		}
	}
	t.text = append(t.text, '}')
	return nil
}

// scalar appends a number, a boolean or null. All other values, times included, become text, and
// so do numbers unknown to JSON (.nan, .inf): parseOffer refuses text for a number.
func (t *transcript) scalar(node *yaml.Node) error {
	switch node.ShortTag() {
	case "!!null":
		t.text = append(t.text, "null"...)
		return nil
	case "!!int", "!!float", "!!bool":
		var v any
		if err := node.Decode(&v); err != nil {
			return fault.Invalidf("", nil, "line %d: %w", node.Line, err)
		}
		if number, err := json.Marshal(v); err == nil {
			t.text = append(t.text, number...)
			return nil
		}
	}
	t.text = jsonform.AppendString(t.text, node.Value)
	return nil
}
