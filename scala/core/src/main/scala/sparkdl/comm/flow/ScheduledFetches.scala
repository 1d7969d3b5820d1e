package sparkdl.comm.flow

import java.util.ArrayDeque
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
 * Fetches blocks as a [[FetchScheduler]] decides: sends its requests, and tells it what comes of them. One for all that an
 * executor fetches. Any thread may call it; it never waits.
 */
private[comm] final class ScheduledFetches(
    chunks: Chunks,
    clock: Clock,
    scheduler: FetchScheduler = new FetchScheduler
) {
  private val fetches = mutable.Map.empty[Wanted, ScheduledFetch]

  // Requests are sent by one thread at a time, in the order of the decisions, and outside of this object's lock.
  private val toSend = new ArrayDeque[Request]
  private var sending = false
  private var wakesAt = Long.MaxValue

  /** Blocks that are wanted and not here. */
  def pending: Int = synchronized(fetches.size)

  /**
   * Fetches a block as soon as its turn comes.
   *
   * @param urgency and `turn`: as in [[Wanted]]
   * @param patience nanoseconds that a chunk of it may take
   */
  def fetch(block: RemoteBlock, urgency: Urgency, turn: Int, patience: Long, into: BlockTarget): ScheduledFetch = {
    val sender = s"${block.server.host}:${block.server.port}"
    val wanted = new Wanted(block.name, sender, block.bytes, urgency, turn)
    val fetch = new ScheduledFetch(block, wanted, patience, into)
    happened { _ =>
      fetches(wanted) = fetch
      scheduler.want(wanted)
    }
    fetch
  }

  /** Wants the block no more: its future fails, unless it is complete. */
  def cancel(fetch: ScheduledFetch): Unit =
    end(fetch, new ChunkFailure.Cancelled(s"the fetch of block ${fetch.block.name} was cancelled"))

  private def end(fetch: ScheduledFetch, cause: ChunkFailure): Unit = {
    var left = Option.empty[Seq[ChunkFetch]]
    happened { _ =>
      left = fetches.remove(fetch.wanted).map(_ => fetch.takeUnderway())
      if (left.isDefined) scheduler.cancel(fetch.wanted)
    }
    left.foreach { underway =>
      underway.foreach(_.cancel())
      fetch.done.completeExceptionally(cause)
    }
  }

  /** `event` is what happened, for the scheduler. */
  private def happened(event: Long => Unit): Unit = {
    synchronized {
      val now = clock.nanoTime
      event(now)
      scheduler.next(now).foreach(toSend.add)
      scheduler.wakeAt(now).filter(_ < wakesAt).foreach { time =>
        wakesAt = time
        // One that an earlier one took the place of has no successor: there is one chain of them.
        clock.after(time - now)(happened(_ => if (wakesAt == time) wakesAt = Long.MaxValue))
      }
    }
    send()
  }

  private def send(): Unit = {
    val mine = synchronized {
      val free = !sending && !toSend.isEmpty
      sending |= free
      free
    }
    if (mine) Iterator.continually(nextToSend()).takeWhile(_.isDefined).flatten.foreach { case (request, fetch) =>
      ask(request, fetch)
    }
  }

  /** Without those that are cancelled. */
  private def nextToSend(): Option[(Request, ScheduledFetch)] = synchronized {
    var found = Option.empty[(Request, ScheduledFetch)]
    while (found.isEmpty && !toSend.isEmpty) {
      val request = toSend.poll()
      found = fetches.get(request.block).map(request -> _)
    }
    if (found.isEmpty) sending = false
    found
  }

  private def ask(request: Request, fetch: ScheduledFetch): Unit = {
    val block = fetch.block
    val now = clock.nanoTime
    fetch.begun(now)
    val chunk = Chunk(block.job, block.name, request.offset, request.bytes)
    val target = fetch.into.part(request.offset, request.bytes)
    val underway = chunks.fetch(block.server, chunk, target, now + fetch.patience)(over(request, fetch, _))
    val wanted = synchronized {
      val wanted = fetches.contains(request.block)
      if (wanted) fetch.underway(request) = underway
      wanted
    }
    if (!wanted) underway.cancel()
  }

  private def over(request: Request, fetch: ScheduledFetch, failure: Option[ChunkFailure]): Unit = failure match {
    case Some(cause) => end(fetch, cause)
    case None =>
      var isHere = false
      happened { now =>
        fetch.underway -= request
        isHere = scheduler.arrived(request, now)
        if (isHere) fetches -= request.block
      }
      if (isHere) fetch.done.complete(null)
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

  private[flow] val underway = mutable.Map.empty[Request, ChunkFetch]
  @volatile private var asked = 0L

  /** When the first bytes of it were asked for, by the clock; 0 before. */
  def askedNanos: Long = asked

  private[flow] def begun(now: Long): Unit = if (asked == 0) asked = now

  private[flow] def takeUnderway(): Seq[ChunkFetch] = {
    val all = underway.values.toSeq
    underway.clear()
    all
  }
}
