package sparkdl.comm.flow

import java.util.concurrent.CompletableFuture

import scala.collection.mutable

import sparkdl.comm.Clock
import sparkdl.comm.transport.{Chunk, ChunkFailure, ChunkFetch, ChunkPeer, ChunkTarget, Chunks}

/** A block of `bytes` bytes that another executor serves. */
private[comm] final case class RemoteBlock(server: ChunkPeer, job: Long, name: String, bytes: Long)

/** Where the bytes of a block go. */
private[comm] trait BlockTarget {

  /** Takes `length` bytes of the block, from `offset` on. Parts of one block may come at the same time. */
  def part(offset: Long, length: Int): ChunkTarget
}

/**
 * Fetches blocks as a [[TransferScheduler]] decides: this executor's downlink is what it schedules. One for all that an
 * executor fetches. Any thread may call it; it never waits.
 */
private[comm] final class ScheduledFetches(
    chunks: Chunks,
    clock: Clock,
    scheduler: TransferScheduler = new TransferScheduler
) {
  private val transfers = new Transfers[ScheduledFetch](clock, scheduler)(ask)

  /** Blocks that are wanted and not here. */
  def pending: Int = transfers.pending

  /**
   * Fetches a block as soon as its turn comes.
   *
   * @param urgency and `turn`: as in [[Wanted]]
   * @param patience nanoseconds that a chunk of it may take
   */
  def fetch(block: RemoteBlock, urgency: Urgency, turn: Int, patience: Long, into: BlockTarget): ScheduledFetch = {
    val wanted = new Wanted(block.name, block.server.toString, block.bytes, urgency, turn)
    val fetch = new ScheduledFetch(block, wanted, patience, into)
    transfers.want(wanted, fetch)
    fetch
  }

  /** Wants the block no more: its future fails, unless it is complete. */
  def cancel(fetch: ScheduledFetch): Unit =
    end(fetch, new ChunkFailure.Cancelled(s"the fetch of block ${fetch.block.name} was cancelled"))

  private def end(fetch: ScheduledFetch, cause: ChunkFailure): Unit = transfers.cancel(fetch.wanted).foreach { fetch =>
    fetch.takeUnderway().foreach(_.cancel())
    fetch.done.completeExceptionally(cause)
  }

  private def ask(request: Request, fetch: ScheduledFetch): Unit = {
    val block = fetch.block
    val now = clock.nanoTime
    fetch.begun(now)
    val chunk = Chunk(block.job, block.name, request.offset, request.bytes)
    val target = fetch.into.part(request.offset, request.bytes)
    val underway = chunks.fetch(block.server, chunk, target, now + fetch.patience)(over(request, fetch, _))
    fetch.underway(request, underway)
    if (!transfers.isWanted(fetch.wanted)) fetch.takeUnderway().foreach(_.cancel())
  }

  private def over(request: Request, fetch: ScheduledFetch, failure: Option[ChunkFailure]): Unit = failure match {
    case Some(cause) => end(fetch, cause)
    case None =>
      fetch.notUnderway(request)
      transfers.done(request).foreach(_.done.complete(null))
  }
}

/** A block on its way, for [[ScheduledFetches]]. */
private[comm] final class ScheduledFetch private[flow] (
    val block: RemoteBlock,
    private[flow] val wanted: Wanted,
    private[flow] val patience: Long,
    private[flow] val into: BlockTarget
) {

  /** Completes when the block is here, or fails with a [[ChunkFailure]]. It does so on a thread of the network. */
  val done = new CompletableFuture[Void]

  private val underway = mutable.Map.empty[Request, ChunkFetch]
  @volatile private var asked = 0L

  /** When the first bytes of it were asked for, by the clock; 0 before. */
  def askedNanos: Long = asked

  private[flow] def begun(now: Long): Unit = if (asked == 0) asked = now

  private[flow] def underway(request: Request, chunk: ChunkFetch): Unit = synchronized(underway(request) = chunk)

  private[flow] def notUnderway(request: Request): Unit = synchronized(underway -= request)

  private[flow] def takeUnderway(): Seq[ChunkFetch] = synchronized {
    val all = underway.values.toList
    underway.clear()
    all
  }
}
