// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import java.util.concurrent.CompletableFuture
import java.util.concurrent.atomic.AtomicInteger

import sparkdl.comm.Clock
import sparkdl.comm.transport.{Chunk, ChunkFetch, ChunkPeer, ChunkTarget, Chunks}

/** Block of `bytes` bytes that another executor serves. */
private[comm] final case class RemoteBlock(server: ChunkPeer, job: Long, name: String, bytes: Long)

/** Destination of a block's bytes. */
private[comm] trait BlockTarget {

  /**
   * Return the target for `length` bytes of the block from `offset` on. Parts of one block may
   * arrive concurrently.
   */
  def part(offset: Long, length: Int): ChunkTarget
}

/**
 * Fetcher of blocks. Every request is sent at once: the executor that serves the block schedules
 * the transfer. Thread-safe and non-blocking.
 */
private[comm] final class Fetcher(chunks: Chunks, clock: Clock) {
  private val pendingCount = new AtomicInteger

  /** Blocks that were requested and have not arrived. */
  def pending: Int = pendingCount.get

  /**
   * Fetch a block.
   *
   * @param patienceNanos nanoseconds until the whole block must have arrived
   * @param into destination of the block's bytes
   */
  def fetch(block: RemoteBlock, patienceNanos: Long, into: BlockTarget): Fetch = {
    pendingCount.incrementAndGet()
    val now = clock.nanoTime
    val (fetched, arrived) =
      Iterator.iterate(0L)(_ + Fetcher.LargestChunkBytes).takeWhile(_ < block.bytes).toVector.map {
        offset =>
          val length = math.min(Fetcher.LargestChunkBytes, block.bytes - offset).toInt
          val arrived = new CompletableFuture[Void]
          val chunk = Chunk(block.job, block.name, offset, length)
          val fetch =
            chunks.fetch(block.server, chunk, into.part(offset, length), now + patienceNanos) {
              failure =>
                failure.fold(arrived.complete(null))(arrived.completeExceptionally(_))
            }
          (fetch, arrived)
      }.unzip
    val done = CompletableFuture.allOf(arrived: _*)
    done.whenComplete((_, _) => pendingCount.decrementAndGet())
    new Fetch(now, fetched, done)
  }
}

private object Fetcher {

  /** Bytes of the largest chunk. The length of a chunk is an Int, so it cannot be much larger. */
  private val LargestChunkBytes = 1L << 30
}

/**
 * Fetch of one block in progress, started by [[Fetcher]].
 *
 * @param askedNanos time of the request, by the clock
 * @param done completes when the block has arrived, or fails with a
 *    [[sparkdl.comm.transport.ChunkFailure]]. It completes on a network thread
 */
private[comm] final class Fetch private[flow] (
    val askedNanos: Long,
    chunks: Seq[ChunkFetch],
    val done: CompletableFuture[Void]
) {

  /** Cancel the fetch: [[done]] fails, unless it is complete. */
  def cancel(): Unit = chunks.foreach(_.cancel())
}
