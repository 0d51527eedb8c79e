package probe

import (
	"bytes"
	"context"
	"net/http"
)

// s3Kind asks an S3 server for its buckets, without credentials. A server denies it in XML, and names the request.
func s3Kind() kind {
	return kind{name: "s3", root: true, schemes: []string{"s3"}, protocols: []string{"s3"}, over: web(), atop: true, secure: []string{"https", "s3"}, port: 80,
		speak: func(ctx context.Context, s *session) (Outcome, error) {
			a, err := s.ask(ctx, http.MethodGet, s.target.Path, nil, nil)
			switch {
			case err != nil:
				return Outcome{}, err
			case a.status >= 500:
				return a.as(Refuses), nil
			case a.header.Get("X-Amz-Request-Id") != "", bytes.Contains(a.body, []byte("<Error>")) && bytes.Contains(a.body, []byte("<Code>")),
				bytes.Contains(a.body, []byte("<ListAllMyBucketsResult")), bytes.Contains(a.body, []byte("<ListBucketResult")):
				return s.answered(a.text()), nil
			default:
				return Outcome{State: WrongProtocol, Detail: a.text() + ", not in the form of S3"}, nil
			}
		}}
}
