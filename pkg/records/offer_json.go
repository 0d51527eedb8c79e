package records

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/blackhole/blackhole/pkg/fault"
)

// MaxOffer bounds the JSON form of one offer, in bytes.
const MaxOffer = 64 << 10

// ParseOffer reads one offer from JSON and validates it. It is strict: unknown or repeated
// fields, wrong types and trailing data are Invalid errors that name the field by its
// path ("capabilities.compute.cpu_cores"). Names are compared with case; null is absent.
func ParseOffer(data []byte) (Offer, error) {
	o, err := parseOffer(data)
	return o, fault.Wrap("records.ParseOffer", err)
}

func parseOffer(data []byte) (Offer, error) {
	if len(data) > MaxOffer {
		return Offer{}, fault.New("", fault.TooLarge, "an offer of %d bytes is above the bound of %d", len(data), MaxOffer)
	}
	if !utf8.Valid(data) { // the decoder would replace what is not
		return Offer{}, fault.Invalidf("", nil, "must be valid UTF-8")
	}
	var o Offer
	d := decoder{json.NewDecoder(bytes.NewReader(data))}
	d.UseNumber()
	err := d.value(reflect.ValueOf(&o).Elem())
	if err == nil {
		err = d.end()
	}
	if err == nil {
		err = o.Validate()
	}
	if err != nil {
		return Offer{}, err
	}
	return o, nil
}

// decoder reads JSON into the structs of this package. The standard one would do, if its
// errors named paths and it refused repeated names and other cases.
type decoder struct{ *json.Decoder }

// end refuses what follows the value.
func (d decoder) end() error {
	if _, err := d.Decoder.Token(); !errors.Is(err, io.EOF) {
		return fault.Invalidf("", nil, "must be a single JSON value")
	}
	return nil
}

// token is the next token; nil is null.
func (d decoder) token() (json.Token, error) {
	t, err := d.Decoder.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fault.Invalidf("", nil, "is not JSON: %w", err)
	}
	return t, nil
}

// value reads one value into v and leaves v alone when it is null.
func (d decoder) value(v reflect.Value) error {
	t, err := d.token()
	if err != nil {
		return err
	}
	if t == nil {
		return nil
	}
	return d.assign(v, t)
}

// assign reads the value that begins with t into v.
func (d decoder) assign(v reflect.Value, t json.Token) error {
	if v.Type() == reflect.TypeFor[time.Time]() {
		return assignTime(v, t)
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.assign(v.Elem(), t)
	case reflect.Struct:
		return d.object(t, func(name string) error { return d.field(v, name) })
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		return d.object(t, func(name string) error {
			element, err := d.element(v.Type().Elem())
			if err == nil {
				v.SetMapIndex(reflect.ValueOf(name), element)
			}
			return err
		})
	case reflect.Slice:
		return d.array(v, t)
	default:
		return assignScalar(v, t)
	}
}

// object reads the fields of an object that t should begin.
func (d decoder) object(t json.Token, field func(name string) error) error {
	if t != json.Delim('{') {
		return wrongType(t, "an object")
	}
	seen := make(map[string]bool)
	for d.More() {
		t, err := d.token()
		if err != nil {
			return err
		}
		name, ok := t.(string)
		if !ok {
			return wrongType(t, "a name")
		}
		if len(name) > maxWord {
			return fault.Invalidf("", nil, "has a name of %d bytes, more than the %d of any field", len(name), maxWord)
		}
		if seen[name] {
			return fault.Invalidf(name, nil, "is given twice")
		}
		seen[name] = true
		if err := field(name); err != nil {
			return fault.In(name, err)
		}
	}
	_, err := d.token() // the closing brace
	return err
}

// field reads the value of a struct's field by its JSON name.
func (d decoder) field(v reflect.Value, name string) error {
	for i := range v.NumField() {
		tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if tag == name {
			return d.value(v.Field(i))
		}
	}
	if v.Type() == reflect.TypeFor[Offer]() && isPeers(name) {
		return fault.Invalidf("", nil, "is filled in by the peer")
	}
	return fault.Invalidf("", nil, "is not a known field")
}

// isPeers reports whether a field of the record is not the provider's to write.
func isPeers(name string) bool {
	switch name {
	case "provider_id", "created_at", "updated_at", "expires_at", "signature", "sequence", "withdrawn", "key", "content_id":
		return true
	}
	return false
}

// array reads the elements of an array that t should begin.
func (d decoder) array(v reflect.Value, t json.Token) error {
	if t != json.Delim('[') {
		return wrongType(t, "a list")
	}
	for i := 0; d.More(); i++ {
		element, err := d.element(v.Type().Elem())
		if err != nil {
			return fault.In(index(i), err)
		}
		v.Set(reflect.Append(v, element))
	}
	_, err := d.token() // the closing bracket
	return err
}

// element reads one value of a list or map, where null would be no value.
func (d decoder) element(of reflect.Type) (reflect.Value, error) {
	v := reflect.New(of).Elem()
	t, err := d.token()
	if err == nil && t == nil {
		err = fault.Invalidf("", nil, "must not be null")
	}
	if err == nil {
		err = d.assign(v, t)
	}
	return v, err
}

func assignScalar(v reflect.Value, t json.Token) error {
	switch v.Kind() {
	case reflect.String:
		s, ok := t.(string)
		if !ok {
			return wrongType(t, "a string")
		}
		v.SetString(s)
	case reflect.Bool:
		b, ok := t.(bool)
		if !ok {
			return wrongType(t, "true or false")
		}
		v.SetBool(b)
	case reflect.Uint32, reflect.Uint64:
		n, ok := t.(json.Number)
		u, err := strconv.ParseUint(n.String(), 10, v.Type().Bits())
		if !ok || err != nil {
			return wrongType(t, fmt.Sprintf("a whole number of 0 to %d", ^uint64(0)>>(64-v.Type().Bits())))
		}
		v.SetUint(u)
	case reflect.Float64:
		n, ok := t.(json.Number)
		f, err := n.Float64()
		if !ok || err != nil {
			return wrongType(t, "a finite number")
		}
		v.SetFloat(f)
	default:
		return fault.New("", fault.Internal, "no JSON form for %s", v.Type())
	}
	return nil
}

func assignTime(v reflect.Value, t json.Token) error {
	s, _ := t.(string)
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return wrongType(t, "a time as in RFC 3339")
	}
	v.Set(reflect.ValueOf(at.UTC()))
	return nil
}

// wrongType is the error for a value that begins with t where something else is wanted.
func wrongType(t json.Token, want string) error {
	switch t := t.(type) {
	case json.Delim:
		kind := "a list"
		if t == '{' {
			kind = "an object"
		}
		return fault.Invalidf("", nil, "must be %s, not %s", want, kind)
	case string:
		if len(t) > maxWord {
			return fault.Invalidf("", nil, "must be %s, not a long string", want)
		}
		return fault.Invalidf("", t, "must be %s, not the string %q", want, t)
	default:
		return fault.Invalidf("", t, "must be %s, not %v", want, t)
	}
}
