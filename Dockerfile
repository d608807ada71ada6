# syntax=docker/dockerfile:1

# Both images, from Linux:
#
#   docker buildx build --target manager --platform linux/amd64,linux/arm64 --provenance=true --sbom=true \
#     --build-arg VERSION=TAG --tag REGISTRY/kubelet-ca-courier/manager:TAG --push .
#   docker buildx build --target node --platform windows/amd64 --provenance=false \
#     --tag REGISTRY/kubelet-ca-courier/node:TAG --push .
#
# Without Docker: go run ./hack/image.

ARG GO_IMAGE=golang:1.26
ARG MANAGER_BASE=gcr.io/distroless/static:nonroot
ARG NODE_BASE=mcr.microsoft.com/oss/kubernetes/windows-host-process-containers-base-image:v1.0.0

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY bundle bundle
COPY cmd cmd
COPY dispatcher dispatcher
COPY node node
COPY webhook webhook
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
ENV CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH
# The same flags as hack/build.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    mkdir /out && \
    case "$TARGETOS" in \
    windows) go build -trimpath -buildvcs=false -ldflags="-s -w" -o /out/courier-node.exe ./cmd/courier-node ;; \
    *) go build -trimpath -buildvcs=false -ldflags="-s -w -X main.version=$VERSION" -o /out/courier ./cmd/courier ;; \
    esac

FROM ${MANAGER_BASE} AS manager
LABEL org.opencontainers.image.title="kubelet-ca-courier manager" \
      org.opencontainers.image.description="webhook and dispatcher of kubelet-ca-courier" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/courier /courier
USER 65532:65532
ENTRYPOINT ["/courier"]

# The entry point is the Job's command (node.Command): the runtime itself puts the image's directory in.
FROM ${NODE_BASE} AS node
LABEL org.opencontainers.image.title="kubelet-ca-courier node" \
      org.opencontainers.image.description="lands the kubelet's client-CA file on a Windows node, in a HostProcess container" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/courier-node.exe /courier-node.exe
ENTRYPOINT ["%CONTAINER_SANDBOX_MOUNT_POINT%\\courier-node.exe"]
