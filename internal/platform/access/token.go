package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// tokenVerifier finds the caller of a bearer token. Its error is for the log only.
type tokenVerifier interface {
	verify(token string) (caller, error)
}

// Reasons of refusals, for the log only.
var (
	errScheme  = errors.New("the Authorization header is not a single bearer token")
	errUnknown = errors.New("the token is unknown")
	errSession = errors.New("the session of the page has ended")
)

// bearer extracts the token from the values of the Authorization header (RFC 6750, section 2.1).
// Without a header it returns "" and no error.
func bearer(values []string) (string, error) {
	if len(values) == 0 {
		return "", nil
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimLeft(token, " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || checkToken(token) != nil {
		return "", errScheme
	}
	return token, nil
}

// tokens holds the digests of the known bearer tokens, so that each comparison takes equal time and
// memory contains no token.
type tokens []known

type known struct {
	digest [sha256.Size]byte
	Principal
}

// verify compares with all tokens in constant time.
func (t tokens) verify(token string) (caller, error) {
	digest := sha256.Sum256([]byte(token))
	at := -1
	for i := range t {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], t[i].digest[:]), i, at)
	}
	if at < 0 {
		return caller{}, errUnknown
	}
	return caller{Principal: t[at].Principal}, nil
}

// entries returns the tokens of the settings with the settings of their files. Token comes first.
func (c *Config) entries() (list []Token, settings []string) {
	if c.Token != nil || c.TokenFile != "" {
		list, settings = append(list, Token{Token: c.Token, TokenFile: c.TokenFile, Name: "token", Role: RoleAdmin}), append(settings, "token_file")
	}
	for i, t := range c.Tokens {
		if t.Name == "" {
			t.Name = fmt.Sprintf("token-%d", i+1)
		}
		list, settings = append(list, t), append(settings, fmt.Sprintf("tokens[%d].token_file", i))
	}
	return list, settings
}

// tokenFiles returns the files of tokens, in the order in which parseTokens takes their contents.
func (c *Config) tokenFiles() (files []file) {
	list, settings := c.entries()
	for i, t := range list {
		if t.TokenFile != "" {
			files = append(files, file{setting: settings[i], path: t.TokenFile, private: true})
		}
	}
	return files
}

// parseTokens fails with Invalid for two equal tokens, because their caller would be ambiguous.
func (c *Config) parseTokens(contents [][]byte) (tokenVerifier, error) {
	list, settings := c.entries()
	seen := map[[sha256.Size]byte]bool{}
	var all tokens
	for i, t := range list {
		text := t.Token.Text()
		if t.TokenFile != "" {
			text, contents = strings.TrimSpace(string(contents[0])), contents[1:]
			if err := fault.In(settings[i], checkToken(text)); err != nil {
				return nil, err
			}
		}
		k := known{digest: sha256.Sum256([]byte(text)), Principal: Principal{Name: t.Name, Role: t.Role, Services: t.Services}}
		if seen[k.digest] {
			return nil, fault.Invalidf(strings.TrimSuffix(settings[i], "_file"), nil, "equals another token: choose a new one")
		}
		seen[k.digest] = true
		all = append(all, k)
	}
	return all, nil
}
