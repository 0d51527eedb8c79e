// Command image makes a container image of finished programs, without a daemon, a registry or a base image: a static program
// needs none. The image has what deploy/docker/Dockerfile describes: the program, an empty data directory of user 65532, and
// the root certificates of Mozilla.
//
//	go run -C internal/tools ./image -o FILE -version VERSION -created SECONDS linux/amd64=PROGRAM linux/arm64=PROGRAM
//
// FILE is a tar of an OCI layout, which docker, podman, skopeo and containerd load. Equal input gives equal bytes.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const user = 65532 // without rights, as in distroless images

func main() {
	out := flag.String("o", "", "file to write")
	version := flag.String("version", "", "tag of the image")
	created := flag.Int64("created", 0, "Unix time of all files")
	flag.Parse()
	if *out == "" || *version == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := build(*out, *version, time.Unix(*created, 0).UTC(), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func build(out, version string, created time.Time, programs []string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range programs {
		platform, file, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("%q: want PLATFORM=PROGRAM", p)
		}
		target, err := v1.ParsePlatform(platform)
		if err != nil {
			return err
		}
		img, err := image(file, version, *target, created)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: target}})
	}
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The layout names one thing: the index of all platforms.
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": version, "io.containerd.image.name": "docker.io/library/blackholed:" + version}
	if err := path.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return err
	}
	return pack(out, dir, created)
}

func image(program, version string, target v1.Platform, created time.Time) (v1.Image, error) {
	files, err := content(program, created)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, &v1.ConfigFile{
		OS: target.OS, Architecture: target.Architecture, Created: v1.Time{Time: created}, RootFS: config.RootFS,
		Config: v1.Config{
			Healthcheck: &v1.HealthConfig{
				Test: []string{"CMD", "/blackholed", "status", "--timeout", "4s"}, Interval: 15 * time.Second, Timeout: 5 * time.Second, StartPeriod: 30 * time.Second, Retries: 4,
			},
			User: fmt.Sprintf("%d:%d", user, user), Env: []string{"BLACKHOLE_DATA=/data"}, Volumes: map[string]struct{}{"/data": {}},
			Entrypoint: []string{"/blackholed"}, Cmd: []string{"run"}, StopSignal: "SIGTERM",
			ExposedPorts: map[string]struct{}{"4801/tcp": {}, "4801/udp": {}, "8500/tcp": {}, "8502/tcp": {}, "8600/tcp": {}, "8600/udp": {}},
			Labels:       map[string]string{"org.opencontainers.image.title": "blackholed", "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"},
		},
	})
}

// content is the one layer of an image.
func content(program string, created time.Time) ([]byte, error) {
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
				return nil, err
			}
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		tar.Header
		data []byte
	}{
		{tar.Header{Name: "blackholed", Typeflag: tar.TypeReg, Mode: 0o755}, binary},
		{tar.Header{Name: "data/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: user, Gid: user}, nil},
		{tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}, nil},
		{tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, fmt.Appendf(nil, "blackholed:x:%d:%d::/data:/sbin/nologin\n", user, user)},
		{tar.Header{Name: "etc/ssl/", Typeflag: tar.TypeDir, Mode: 0o755}, nil},
		{tar.Header{Name: "etc/ssl/certs/", Typeflag: tar.TypeDir, Mode: 0o755}, nil},
		{tar.Header{Name: "etc/ssl/certs/ca-certificates.crt", Typeflag: tar.TypeReg, Mode: 0o644}, roots.Bytes()},
		{tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil},
	} {
		f.ModTime, f.Size = created, int64(len(f.data))
		if err := w.WriteHeader(&f.Header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err = w.Close()
	return b.Bytes(), err
}

// pack writes all files of a directory into a tar.
func pack(out, dir string, created time.Time) error {
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer file.Close()
	w := tar.NewWriter(file)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Typeflag: tar.TypeReg, Mode: 0o644, ModTime: created, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return file.Close()
}
