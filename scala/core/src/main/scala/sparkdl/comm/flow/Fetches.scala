package sparkdl.comm.flow

import java.util.concurrent.CompletableFuture
import java.util.concurrent.atomic.AtomicInteger

import sparkdl.comm.Clock
import sparkdl.comm.transport.{Chunk, ChunkFetch, ChunkPeer, ChunkTarget, Chunks}

/** A block of `bytes` bytes that another executor serves. */
private[comm] final case class RemoteBlock(server: ChunkPeer, job: Long, name: String, bytes: Long)

/** Where the bytes of a block go. */
private[comm] trait BlockTarget {

  /** Takes `length` bytes of the block, from `offset` on. Parts of one block may come at the same time. */
  def part(offset: Long, length: Int): ChunkTarget
}

/**
 * Fetches blocks. What is wanted is asked for at once: who serves it decides what passes the links when. Any thread may call it;
 * it never waits.
 */
private[comm] final class Fetches(chunks: Chunks, clock: Clock) {
  private val underway = new AtomicInteger

  /** Blocks that are wanted and not here. */
  def pending: Int = underway.get

  /** @param patience nanoseconds until all of it has to be here */
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

  /** A chunk may have little more. */
  private val LargestChunk = 1L << 30
}

/**
 * A block on its way, for [[Fetches]].
 *
 * @param askedNanos when it was asked for, by the clock
 * @param done
 *   completes when the block is here, or fails with a [[sparkdl.comm.transport.ChunkFailure]]. It does so on a thread of the
 *   network
 */
private[comm] final class Fetch private[flow] (
    val askedNanos: Long,
    chunks: Seq[ChunkFetch],
    val done: CompletableFuture[Void]
) {

  /** Wants the block no more: [[done]] fails, unless it is complete. */
  def cancel(): Unit = chunks.foreach(_.cancel())
}
