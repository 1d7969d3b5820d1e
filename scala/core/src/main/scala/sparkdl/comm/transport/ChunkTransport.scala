package sparkdl.comm.transport

import org.apache.spark.network.buffer.ManagedBuffer
import org.apache.spark.network.client.TransportClientBootstrap
import org.apache.spark.network.server.TransportServerBootstrap
import org.apache.spark.network.util.TransportConf

/** Finds the bytes of the chunks that this executor serves. */
trait ChunkSource {

  /**
   * The bytes of a chunk, which stay where they are until they are released; None if the block is not here. Spark gives the lock of
   * a block to the task that the thread runs, if any: open and release on the same thread, which runs none.
   *
   * @throws IllegalArgumentException if the block is shorter
   */
  def open(chunk: Chunk): Option[ManagedBuffer]
}

/** What Spark has for a [[ChunkNetwork]]: settings, authentication, an address to listen on, and the blocks. */
trait ChunkTransport extends ChunkSource {
  def transportConf: TransportConf

  /** Authenticate peers, and encrypt, as Spark's conf sets it. */
  def serverBootstraps: Seq[TransportServerBootstrap]
  def clientBootstraps: Seq[TransportClientBootstrap]

  /** Where Spark's block manager listens too. */
  def bindAddress: String

  /**
   * What `serve` makes of the first free one of `count` ports from `first` (0: any).
   *
   * @throws java.net.BindException if none is free
   */
  def onFreePort[T](first: Int, count: Int)(serve: Int => T): T
}
