// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import java.util.ArrayDeque

import scala.collection.mutable

import sparkdl.comm.Clock

/**
 * Driver of a [[TransferScheduler]]: carries out the scheduler's decisions and reports their
 * outcome. Thread-safe and non-blocking.
 *
 * @tparam T data kept for each block until it is sent or cancelled
 * @param carryOut starts a request. Called by one thread at a time, in the order of the decisions
 * @param onFailure called with what `carryOut` threw, on the thread that ran it. The other requests
 *    are still carried out
 */
private[flow] final class TransferDriver[T](clock: Clock, scheduler: TransferScheduler)(carryOut: (
    ChunkRequest,
    T
) => Unit)(
    onFailure: (T, Throwable) => Unit
) {
  private val entries = mutable.Map.empty[SendRequest, T]

  // Carried out without this object's lock.
  private val waiting = new ArrayDeque[ChunkRequest]
  private var isCarryingOut = false
  private var nextWakeUp = Long.MaxValue

  /** Blocks that are not fully sent. */
  def pending: Int = synchronized(entries.size)

  def add(block: SendRequest, data: T): Unit = report { _ =>
    entries(block) = data
    scheduler.add(block)
  }

  /**
   * Report that a request is done. Return the data of its block if that was the block's last
   * request.
   *
   * @param peerTime as in [[TransferScheduler.recordArrival]]
   */
  def complete(request: ChunkRequest, peerTime: Option[Long] = None): Option[T] =
    report(now =>
      if (scheduler.recordArrival(request, now, peerTime)) entries.remove(request.block) else None
    )

  /** Cancel a block. Return its data if it was pending. */
  def cancel(block: SendRequest): Option[T] = report { _ =>
    val data = entries.remove(block)
    if (data.isDefined) scheduler.cancel(block)
    data
  }

  /** Cancel all pending blocks whose data satisfies `isMeant`. */
  def cancelAll(isMeant: T => Boolean): Unit = report { _ =>
    val cancelled = entries.collect { case (block, data) if isMeant(data) => block }.toList
    entries --= cancelled
    cancelled.foreach(scheduler.cancel)
  }

  /** Report `event` to the scheduler, then carry out the requests that follow from it. */
  private def report[R](event: Long => R): R = {
    val result = synchronized {
      val now = clock.nanoTime
      val result = event(now)
      scheduler.next(now).foreach(waiting.add)
      scheduler.wakeAt(now).filter(_ < nextWakeUp).foreach { time =>
        // A wake-up that an earlier one replaced does not reset `nextWakeUp`, so it has no
        // successor.
        clock.after(time - now)(report(_ => if (nextWakeUp == time) nextWakeUp = Long.MaxValue))
        nextWakeUp = time
      }
      result
    }
    carryOutAll()
    result
  }

  private def carryOutAll(): Unit = {
    val isFree = synchronized {
      val free = !isCarryingOut && !waiting.isEmpty
      isCarryingOut |= free
      free
    }
    if (isFree) {
      var finished = false
      try {
        Iterator.continually(nextToCarryOut()).takeWhile(_.isDefined).flatten.foreach {
          case (request, data) =>
            try carryOut(request, data)
            catch { case e: Throwable => onFailure(data, e) }
        }
        finished = true
      } finally if (!finished) synchronized { isCarryingOut = false }
    }
  }

  /** Return the next request whose block is not cancelled. */
  private def nextToCarryOut(): Option[(ChunkRequest, T)] = synchronized {
    var found = Option.empty[(ChunkRequest, T)]
    while (found.isEmpty && !waiting.isEmpty) {
      val request = waiting.poll()
      found = entries.get(request.block).map(request -> _)
    }
    if (found.isEmpty) isCarryingOut = false
    found
  }
}
