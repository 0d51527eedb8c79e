package instance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/Masterminds/semver/v3"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of single texts, in bytes.
const (
	maxNamespace   = 63
	maxService     = 64
	maxID          = 128
	maxVersion     = 128
	maxName        = 128 // interface, metadata key, tag
	maxValue       = 4 << 10
	maxAddress     = 512
	maxShort       = 64 // region, owner
	maxOwner       = 256
	maxDescription = 500

	// overhead is the part of MaxSize for fields of the registry: id, lease,
	// peer, principal, times, status.
	overhead = 768
)

// Normalize validates a registration and completes it: it applies defaults,
// sorts lists and removes duplicates. The result shares nothing with the
// caller. An empty id stays empty.
//
// UnhealthyAfter 0 becomes DefaultUnhealthyAfter, or three intervals of the
// check if that is more, but at most a given RemoveAfter. RemoveAfter 0 becomes
// defaultRemoveAfter, or twice UnhealthyAfter if that is more, and makes an instance
// with a check Lasting. Without a check Lasting becomes false.
//
// Errors: Invalid with the API name of the field, such as "metadata.KEY" or
// "tags[2]"; Unprocessable for an invalid version; TooLarge above MaxSize in
// total. An error leaves r unchanged.
func (r *Registration) Normalize() error {
	n := *r
	n.Key = n.Key.WithDefaults()
	if err := n.Name().Validate(); err != nil {
		return err
	}
	if n.ID != "" {
		if err := validateID(n.ID); err != nil {
			return err
		}
	}
	if n.Status != StatusUnknown && n.Status != StatusStarting {
		return fault.Invalidf("status", n.Status.String(), "must be STARTING or empty in a registration")
	}
	if err := fault.Text("principal", n.Principal, maxOwner); err != nil {
		return err
	}
	if err := n.Spec.normalize(); err != nil {
		return err
	}
	if most(&n.Key, &n.Spec) > MaxSize-overhead {
		if size := proto.Size((&Instance{Key: n.Key, Spec: n.Spec}).whole()); size > MaxSize-overhead {
			return fault.New("", fault.TooLarge, "the encoded instance has %d bytes: reduce it to %d", size, MaxSize-overhead)
		}
	}
	n.share()
	*r = n
	return nil
}

// most returns a cheap upper bound of the encoded size, enough for all but the
// largest instances.
func most(k *Key, s *Spec) int {
	const (
		numbers = 256 // numbers, times, tags and lengths of all single fields
		one     = 8   // tag and length of one repeated field
	)
	n := numbers + len(k.Namespace) + len(k.Service) + len(k.ID) + len(s.Host) + len(s.Version) + len(s.Environment) +
		len(s.Region) + len(s.Owner) + len(s.Description) + len(s.Zone) + len(s.Offer) + len(s.Note) + len(s.later)
	for _, list := range [][]string{s.Tags, s.Dependencies} {
		for _, text := range list {
			n += one + len(text)
		}
	}
	for _, pairs := range []map[string]string{s.Interfaces, s.Metadata} {
		for key, value := range pairs {
			n += 3*one + len(key) + len(value)
		}
	}
	if s.Check != nil {
		n += len(s.Check.Type) + len(s.Check.Endpoint)
	}
	return n
}

// share shares texts common to many instances.
func (r *Registration) share() {
	for _, text := range []*string{
		&r.Namespace, &r.Service, &r.Spec.Version, &r.Spec.Environment, &r.Spec.Region, &r.Spec.Owner, &r.Spec.Zone,
	} {
		*text = shared(*text)
	}
	if r.Spec.Check != nil {
		r.Spec.Check.Endpoint = shared(r.Spec.Check.Endpoint)
	}
}

// WithDefaults returns the key with DefaultNamespace in place of "".
func (k Key) WithDefaults() Key {
	k.Namespace = cmp.Or(k.Namespace, DefaultNamespace)
	return k
}

// Validate returns the first error: Invalid, field "namespace", "service" or
// "id".
func (k Key) Validate() error {
	if err := k.Name().Validate(); err != nil {
		return err
	}
	return validateID(k.ID)
}

// Validate returns the first error: Invalid, field "namespace" or "service".
func (n Name) Validate() error {
	if err := validateLabel("namespace", n.Namespace, maxNamespace); err != nil {
		return err
	}
	return validateWord("service", n.Service, maxService)
}

func validateLabel(field, text string, most int) error {
	switch {
	case text == "":
		return fault.Invalidf(field, nil, "is required")
	case len(text) > most:
		return fault.Invalidf(field, shorten(text), "has %d bytes, limit %d", len(text), most)
	case !consists(text, isLabel):
		return fault.Invalidf(field, text, "must be lowercase alphanumeric with hyphens")
	}
	return nil
}

// validateWord accepts what stands unescaped in a URL, in a key of the directory and in a name of another front.
func validateWord(field, text string, most int) error {
	bad := strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf || !isID(byte(r)) })
	switch {
	case text == "":
		return fault.Invalidf(field, nil, "is required")
	case len(text) > most:
		return fault.Invalidf(field, shorten(text), "has %d bytes, limit %d", len(text), most)
	case bad >= 0:
		r, _ := utf8.DecodeRuneInString(text[bad:])
		return fault.Invalidf(field, shorten(text), "contains %q: use letters, digits and . _ : -", r)
	case text == "." || text == "..":
		return fault.Invalidf(field, text, "is reserved for URLs: choose another name")
	}
	return nil
}

func validateID(id string) error {
	if id == "instances" || id == "watch" {
		return fault.Invalidf("id", id, "is reserved for URLs: choose another name")
	}
	return validateWord("id", id, maxID)
}

// normalize validates s and applies defaults. After an error s is undefined.
func (s *Spec) normalize() error {
	for _, step := range []func(*Spec) error{
		(*Spec).normalizeAddress, (*Spec).normalizeVersion, (*Spec).normalizeInterfaces, (*Spec).normalizeMetadata,
		(*Spec).normalizeLists, (*Spec).validateTexts, (*Spec).normalizeWeight, (*Spec).normalizeCheck,
		(*Spec).normalizeThresholds, (*Spec).normalizeOffer,
	} {
		if err := step(s); err != nil {
			return err
		}
	}
	return nil
}

func (s *Spec) normalizeAddress() error {
	if s.Host == "" {
		switch {
		case s.Port != 0:
			return fault.Invalidf("port", s.Port, "needs a host")
		case len(s.Interfaces) == 0:
			return fault.Invalidf("host", nil, "is required for an instance without interfaces")
		}
		return nil
	}
	host, err := normalizeHost(s.Host)
	if err != nil {
		return err
	}
	s.Host = host
	if s.Port < 0 || s.Port > 65535 {
		return fault.Invalidf("port", s.Port, "must be 1 to 65535, or 0 for none")
	}
	return nil
}

// normalizeHost returns the canonical text of an IP address (RFC 5952), or a
// host name unchanged.
func normalizeHost(host string) (string, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap()
		if addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
			return "", fault.Invalidf("host", host, "is not a unicast address: use the address of one host")
		}
		return addr.String(), nil
	}
	if !isHostName(host) {
		return "", fault.Invalidf("host", shorten(host), "must be an IP address or a host name")
	}
	return host, nil
}

// isHostName reports whether host is a name by RFC 1123, underscores allowed. A
// name with a numeric last label is invalid, because some resolvers read it as
// an IPv4 address.
func isHostName(host string) bool {
	if host == "" || len(host) > 253 {
		return false
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' || !consists(label, isHost) {
			return false
		}
	}
	return !consists(labels[len(labels)-1], isDigit)
}

func (s *Spec) normalizeVersion() error {
	if s.Version == "" {
		return nil
	}
	var err error
	if len(s.Version) > maxVersion {
		err = fault.New("", fault.Unprocessable, "has %d bytes, limit %d", len(s.Version), maxVersion)
	} else {
		_, err = semver.StrictNewVersion(s.Version)
	}
	if err != nil {
		return &fault.Error{Kind: fault.Unprocessable, Field: "version", Value: shorten(s.Version), Err: err}
	}
	return nil
}

func (s *Spec) normalizeInterfaces() error {
	if len(s.Interfaces) > MaxInterfaces {
		return tooMany("interfaces", len(s.Interfaces), MaxInterfaces)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Interfaces)) {
		if name == "" || len(name) > maxName || !consists(name, isID) {
			return fault.Invalidf("interfaces", shorten(name), "has a bad name: use 1 to %d letters, digits and . _ : -", maxName)
		}
		address := s.Interfaces[name]
		if address == "" {
			return fault.Invalidf("interfaces."+name, nil, "has no address")
		}
		if err := fault.Text("interfaces."+name, address, maxAddress); err != nil {
			return err
		}
	}
	s.Interfaces = cloneMap(s.Interfaces)
	return nil
}

func (s *Spec) normalizeMetadata() error {
	if len(s.Metadata) > MaxMetadata {
		return tooMany("metadata", len(s.Metadata), MaxMetadata)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Metadata)) {
		if key == "" {
			return fault.Invalidf("metadata", key, "has an empty key")
		}
		if err := fault.Text("metadata", key, maxName); err != nil {
			return err
		}
		switch value := s.Metadata[key]; {
		case len(value) > maxValue:
			return fault.Invalidf("metadata."+key, nil, "has %d bytes, limit %d", len(value), maxValue)
		case !utf8.ValidString(value):
			return fault.Invalidf("metadata."+key, nil, "is not UTF-8")
		}
	}
	s.Metadata = cloneMap(s.Metadata)
	return nil
}

func (s *Spec) normalizeLists() error {
	if len(s.Tags) > MaxTags {
		return tooMany("tags", len(s.Tags), MaxTags)
	}
	for i, tag := range s.Tags {
		if err := validateTag(tag); err != nil {
			return fault.In("tags", fault.In(index(i), err))
		}
	}
	if len(s.Dependencies) > MaxDependencies {
		return tooMany("dependencies", len(s.Dependencies), MaxDependencies)
	}
	for i, service := range s.Dependencies {
		if err := validateWord("dependencies"+index(i), service, maxService); err != nil {
			return err
		}
	}
	s.Tags, s.Dependencies = sorted(s.Tags), sorted(s.Dependencies)
	return nil
}

// validateTag rejects tags that a filter cannot name: commas separate tags.
func validateTag(tag string) error {
	switch {
	case strings.TrimSpace(tag) != tag || tag == "" || strings.Contains(tag, ","):
		return fault.Invalidf("", shorten(tag), "contains a comma, or a space at an end: remove it")
	default:
		return fault.Text("", tag, maxName)
	}
}

func (s *Spec) validateTexts() error {
	switch s.Environment {
	case "", "development", "staging", "production":
	default:
		return fault.Invalidf("environment", shorten(s.Environment), "must be development, staging or production")
	}
	if err := fault.Text("region", s.Region, maxShort); err != nil {
		return err
	}
	if err := fault.Text("owner", s.Owner, maxShort); err != nil {
		return err
	}
	if err := validateZone("zone", s.Zone); err != nil {
		return err
	}
	if utf8.RuneCountInString(s.Description) > maxDescription || !utf8.ValidString(s.Description) {
		return fault.Invalidf("description", nil, "must be valid UTF-8, at most %d characters", maxDescription)
	}
	return nil
}

// validateZone accepts a lower-case DNS label: names ignore case, filters do
// not.
func validateZone(field, zone string) error {
	if zone == "" {
		return nil
	}
	if len(zone) > 63 || zone[0] == '-' || zone[len(zone)-1] == '-' || !consists(zone, isLabel) {
		return fault.Invalidf(field, shorten(zone), "must be a label of a DNS name: up to 63 lowercase letters, digits and inner hyphens")
	}
	return nil
}

func (s *Spec) normalizeWeight() error {
	s.Weight = cmp.Or(s.Weight, DefaultWeight)
	if s.Weight < 1 || s.Weight > 100 {
		return fault.Invalidf("weight", s.Weight, "must be 1 to 100")
	}
	return nil
}

func (s *Spec) normalizeCheck() error {
	if s.Check == nil {
		return nil
	}
	c := *s.Check
	if err := c.Normalize(); err != nil {
		return fault.In("health_check", err)
	}
	if s.Host == "" && c.Type != Script && c.host() == "" {
		return fault.Invalidf("health_check.endpoint", c.Endpoint, "needs a host, because the instance has none")
	}
	if s.Port == 0 && c.usesPort() {
		return fault.Invalidf("health_check.endpoint", c.Endpoint, "needs a port, because the instance has none")
	}
	s.Check = &c
	return nil
}

// normalizeThresholds applies defaults that fit the given values: a rarely
// checked instance must not become unhealthy between two checks.
func (s *Spec) normalizeThresholds() error {
	if s.UnhealthyAfter == 0 {
		s.UnhealthyAfter = DefaultUnhealthyAfter
		if s.Check != nil {
			s.UnhealthyAfter = max(s.UnhealthyAfter, 3*s.Check.Interval)
		}
		if s.RemoveAfter > 0 {
			s.UnhealthyAfter = min(s.UnhealthyAfter, s.RemoveAfter)
		}
	}
	s.Lasting = s.Check != nil && (s.Lasting || s.RemoveAfter == 0)
	s.RemoveAfter = cmp.Or(s.RemoveAfter, min(max(defaultRemoveAfter, 2*s.UnhealthyAfter), MaxTTL))
	if err := between("unhealthy_after", s.UnhealthyAfter, MinTTL, MaxTTL); err != nil || s.RemoveAfter == Never {
		return err
	}
	return between("remove_after", s.RemoveAfter, s.UnhealthyAfter, MaxTTL)
}

func (s *Spec) normalizeOffer() error {
	if len(s.Note) > MaxNote || !utf8.ValidString(s.Note) {
		return fault.Invalidf("note", nil, "must be valid UTF-8, at most %d bytes", MaxNote)
	}
	if len(s.Offer) == 0 {
		s.Offer = nil
		return nil
	}
	if len(s.Offer) > MaxSize { // before it is parsed
		return fault.New("", fault.TooLarge, "the offer has %d bytes, more than the limit of an instance, %d", len(s.Offer), MaxSize)
	}
	if !json.Valid(s.Offer) || !utf8.Valid(s.Offer) {
		return fault.Invalidf("offer", nil, "is not JSON")
	}
	s.Offer = slices.Clone(s.Offer)
	return nil
}

func between(field string, d, low, high time.Duration) error {
	if d >= low && d <= high {
		return nil
	}
	text := d.String()
	if d == Never {
		text = "never"
	}
	return fault.Invalidf(field, text, "must be %v to %v", low, high)
}

func tooMany(field string, n, most int) error {
	return fault.Invalidf(field, n, "has %d entries, limit %d", n, most)
}

// shorten makes a rejected text fit for an error.
func shorten(text string) string {
	const most = 128 // bytes
	return clean.Text(text, most)
}

// Unaskable names, in a sentence, the first word of an instance of this key with these tags that does not fit into a
// name of DNS: a service is one label, a label has at most 63 bytes (RFC 1035), one less after the _ of a question
// for SRV, and no hyphen at its ends (RFC 1123). "" is none.
func (k Key) Unaskable(tags []string) string {
	if strings.ContainsAny(k.Service, ".:") {
		return "DNS cannot ask for the service " + k.Service +
			": a service is one label there, of letters, digits, hyphens and _"
	}
	if len(k.Service) == 63 {
		return "DNS cannot ask for _" + k.Service + "._tcp, only for " + k.Service + ".service: the label has 64 bytes, limit 63"
	}
	words := [][2]string{{"service", k.Service}, {"namespace", k.Namespace}}
	for _, tag := range tags {
		words = append(words, [2]string{"tag", tag})
	}
	for _, word := range words {
		for label := range strings.SplitSeq(word[1], ".") {
			switch {
			case len(label) > 63:
				return fmt.Sprintf("DNS cannot ask for the %s %s: a label has %d bytes, limit 63", word[0], word[1], len(label))
			case strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-"):
				return fmt.Sprintf("DNS cannot ask for the %s %s: a label begins or ends with a hyphen", word[0], word[1])
			}
		}
	}
	return ""
}
