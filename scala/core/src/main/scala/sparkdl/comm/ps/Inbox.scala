// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.util.concurrent.{
  CompletableFuture,
  CompletionException,
  ConcurrentHashMap,
  ExecutionException,
  TimeoutException
}
import java.util.function.BiConsumer

import sparkdl.comm.{Clock, CommException}

/**
 * Messages that one rank receives from the others, and the failure that ends all waits for them.
 */
private[ps] final class Inbox(clock: Clock) {
  private val notices =
    new ConcurrentHashMap[(Notice.Kind, Int, Int, Long), CompletableFuture[Notice]]
  private val contributions = new ConcurrentHashMap[(Long, Int), CompletableFuture[Array[Byte]]]
  private val failure = new CompletableFuture[Nothing]

  /** Return a future that completes when rank `from` has published a block. */
  def notice(kind: Notice.Kind, from: Int, bucket: Int, version: Long): CompletableFuture[Notice] =
    notices.computeIfAbsent((kind, from, bucket, version), _ => new CompletableFuture[Notice])

  def onNotice(notice: Notice): Unit =
    this.notice(notice.kind, notice.from, notice.bucket, notice.version).complete(notice)

  def forget(kind: Notice.Kind, from: Int, bucket: Int, version: Long): Unit =
    notices.remove((kind, from, bucket, version))

  /**
   * Return a future that completes when rank `from` has sent its part of this round of a
   * [[Gathering]].
   */
  def contribution(round: Long, from: Int): CompletableFuture[Array[Byte]] =
    contributions.computeIfAbsent((round, from), _ => new CompletableFuture[Array[Byte]])

  def onContribution(contribution: Contribution): Unit =
    this.contribution(contribution.round, contribution.from).complete(contribution.part)

  def forgetRound(round: Long, world: Int): Unit =
    (0 until world).foreach(from => contributions.remove((round, from)))

  /** End every wait, now and later, with `cause`. Only the first cause counts. */
  def fail(cause: CommException): Unit = failure.completeExceptionally(cause)

  /** Run `action` when the rank fails, at once if it has failed. */
  def onFailure(action: () => Unit): Unit = {
    val run: BiConsumer[Any, Throwable] = (_, _) => action()
    failure.whenComplete(run)
  }

  def hasFailed: Boolean = failure.isCompletedExceptionally

  def checkNotFailed(): Unit = if (hasFailed) throw firstFailure

  /**
   * Wait for `done` until `deadline` of the clock. `timeoutError` makes the exception of a wait
   * that took too long.
   */
  def await(done: CompletableFuture[_], deadline: Long)(timeoutError: => CommException): Unit =
    try clock.await(CompletableFuture.anyOf(done, failure), deadline)
    catch {
      case e: ExecutionException => throw (if (hasFailed) firstFailure else e.getCause)
      case _: TimeoutException => throw timeoutError
    }

  private def firstFailure: Throwable =
    try failure.join()
    catch { case e: CompletionException => e.getCause }
}
