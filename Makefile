# Few targets; each is a line or two over go, so that everything can be run by hand as well.
SHELL := /bin/bash
.DEFAULT_GOAL := help
N ?= 1000

.PHONY: help
help: ## show this
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## a real control plane with three Windows nodes, and one rotation told as a story; in DIR=… or your cache
	@hack/setup.sh
	@go run ./hack/demo $(if $(DIR),--dir $(DIR))

.PHONY: demo-down
demo-down: ## end what `make demo` left running
	@go run ./hack/demo --down $(if $(DIR),--dir $(DIR))

.PHONY: test
test: ## every test there is; installs what it needs as root on Debian, else says what it left out
	@hack/test.sh

.PHONY: unit
unit: ## the quick tests alone
	@go test ./bundle/... ./webhook/... ./dispatcher/... ./node/... ./cmd/...

.PHONY: scale
scale: ## the rollout to N nodes against a plain loop, N=1000 unless told
	@hack/scale.sh $(N)

.PHONY: fuzz
fuzz: ## every fuzz target of this module, one minute each
	@hack/fuzz.sh 1m

.PHONY: lint
lint: ## golangci-lint as pinned in hack/tools
	@hack/lint.sh

.PHONY: vuln
vuln: ## known vulnerabilities in what the programs call, by govulncheck; needs the Go vulnerability database
	@go run -C hack/tools golang.org/x/vuln/cmd/govulncheck -C ../.. ./cmd/...

.PHONY: install.yaml
install.yaml: ## one rendered file per overlay, under install/
	@hack/render.sh install

.PHONY: images
images: ## both images as tarballs under install/, without Docker
	@go run ./hack/image --output install
