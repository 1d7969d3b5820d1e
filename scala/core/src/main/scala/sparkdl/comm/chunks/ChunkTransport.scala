// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import org.apache.spark.network.buffer.ManagedBuffer
import org.apache.spark.network.client.TransportClientBootstrap
import org.apache.spark.network.server.TransportServerBootstrap
import org.apache.spark.network.util.TransportConf

import sparkdl.comm.transport.Chunk

/** Source of the chunks that this executor serves. */
trait ChunkSource {

  /**
   * Return the bytes of a chunk without waiting. Return None if this executor does not have the
   * block, or if the block is locked because Spark is moving or removing it. The bytes stay in
   * place until they are released. Spark assigns the block's lock to the task of the calling
   * thread. So open and release on the same thread, and on one that runs no task.
   *
   * @throws IllegalArgumentException if the block is shorter
   * @throws java.io.IOException if its bytes are lost
   */
  def open(chunk: Chunk): Option[ManagedBuffer]

  /** Return true if this executor has the block of a chunk, locked or not. */
  def has(chunk: Chunk): Boolean
}

/**
 * Parts of Spark that a [[ChunkNetwork]] needs: settings, authentication, an address to listen on,
 * and the blocks.
 */
trait ChunkTransport extends ChunkSource {
  def transportConf: TransportConf

  /** Bootstraps that authenticate peers, and encrypt, as Spark's conf says. */
  def serverBootstraps: Seq[TransportServerBootstrap]
  def clientBootstraps: Seq[TransportClientBootstrap]

  /** Address on which Spark's block manager listens too. */
  def bindAddress: String

  /**
   * Call `serve` with the first free one of `count` ports from `first` on (0: any), and return its
   * result.
   *
   * @throws java.net.BindException if none is free
   */
  def onFreePort[T](first: Int, count: Int)(serve: Int => T): T
}
