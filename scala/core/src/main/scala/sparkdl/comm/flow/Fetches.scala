package sparkdl.comm.flow

import java.util.concurrent.CompletableFuture
import java.util.concurrent.atomic.AtomicInteger

import sparkdl.comm.Clock
import sparkdl.comm.transport.{Chunk, ChunkFetch, ChunkPeer, ChunkTarget, Chunks}

/** Block of `bytes` bytes that another executor serves. */
private[comm] final case class RemoteBlock(server: ChunkPeer, job: Long, name: String, bytes: Long)

/** Destination of a block's bytes. */
private[comm] trait BlockTarget {

  /** Return the target for `length` bytes of the block from `offset` on. Parts of one block may arrive concurrently. */
  def part(offset: Long, length: Int): ChunkTarget
}

/**
 * Fetcher of blocks. Every request is sent at once: the executor that serves the block schedules the transfer.
 * Thread-safe and non-blocking.
 */
private[comm] final class Fetches(chunks: Chunks, clock: Clock) {
  private val underway = new AtomicInteger

  /** Blocks that were requested and have not arrived. */
  def pending: Int = underway.get

  /**
   * Fetch a block.
   *
   * @param patience nanoseconds until the whole block must have arrived
   * @param into destination of the block's bytes
   */
  def fetch(block: RemoteBlock, patience: Long, into: BlockTarget): Fetch = {
    underway.incrementAndGet()
    val now = clock.nanoTime
    val (fetched, here) =
      Iterator.iterate(0L)(_ + Fetches.LargestChunk).takeWhile(_ < block.bytes).toVector.map { offset =>
        val length = math.min(Fetches.LargestChunk, block.bytes - offset).toInt
        val here = new CompletableFuture[Void]
        val chunk = Chunk(block.job, block.name, offset, length)
        val fetch = chunks.fetch(block.server, chunk, into.part(offset, length), now + patience) { failure =>
          failure.fold(here.complete(null))(here.completeExceptionally(_))
        }
        (fetch, here)
      }.unzip
    val done = CompletableFuture.allOf(here: _*)
    done.whenComplete((_, _) => underway.decrementAndGet())
    new Fetch(now, fetched, done)
  }
}

private object Fetches {

  /** Bytes of the largest chunk. The length of a chunk is an Int, so it cannot be much larger. */
  private val LargestChunk = 1L << 30
}

/**
 * Fetch of one block in progress, started by [[Fetches]].
 *
 * @param askedNanos time of the request, by the clock
 * @param done completes when the block has arrived, or fails with a [[sparkdl.comm.transport.ChunkFailure]]. It
 *    completes on a network thread
 */
private[comm] final class Fetch private[flow] (
    val askedNanos: Long,
    chunks: Seq[ChunkFetch],
    val done: CompletableFuture[Void]
) {

  /** Cancel the fetch: [[done]] fails, unless it is complete. */
  def cancel(): Unit = chunks.foreach(_.cancel())
}
