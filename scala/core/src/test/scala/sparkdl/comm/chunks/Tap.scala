// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.io.{ByteArrayOutputStream, IOException}
import java.net.{InetAddress, ServerSocket, Socket}

import sparkdl.comm.transport.ChunkPeer

/**
 * Proxy between a client and an executor. It records their data, and can cut them off or emulate a
 * replaced machine.
 */
final class Tap(first: ChunkPeer) {
  @volatile private var to = first
  @volatile private var swallows = false
  private val listening = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"))
  private val recorded = new ByteArrayOutputStream
  private var sockets = Vector.empty[Socket]

  val address: ChunkPeer = ChunkPeer("127.0.0.1", listening.getLocalPort, first.executor)

  /** All data in both directions, one character for each byte. */
  def recordedText: String = synchronized(recorded.toString("ISO-8859-1"))

  /** Number of connections so far. */
  def connections: Int = synchronized(sockets.size / 2)

  def cut(): Unit = synchronized(sockets.foreach(_.close()))

  /**
   * Emulate that the machine vanishes and `by` runs on another one with its address. That machine
   * does not know the earlier connections, and closes them when it gets data over one.
   */
  def replace(by: ChunkPeer): Unit = to = by

  /**
   * Emulate a partition of the network in which the executor lost its connections, and the client
   * did not learn it. The executor closes them when it gets data over one.
   *
   * @param silently nothing comes back, not even the end of a connection
   */
  def forgetConnections(silently: Boolean): Unit = {
    swallows = silently
    to = to.copy()
  }

  def close(): Unit = {
    listening.close()
    cut()
  }

  inThread {
    while (true) {
      val client = listening.accept()
      val known = to
      val server = new Socket(known.host, known.port)
      synchronized(sockets ++= Seq(client, server))
      inThread(copy(client, server, to eq known))
      inThread(copy(server, client, to eq known))
    }
  }

  private def copy(from: Socket, to: Socket, isKnown: => Boolean): Unit = {
    val buffer = new Array[Byte](1 << 16)
    def isOpen(count: Int): Boolean = count >= 0 && (isKnown || swallows)
    Iterator.continually(from.getInputStream.read(buffer)).takeWhile(isOpen).foreach { count =>
      if (isKnown) {
        synchronized(recorded.write(buffer, 0, count))
        to.getOutputStream.write(buffer, 0, count)
      }
    }
    Seq(from, to).foreach(_.close())
  }

  private def inThread(body: => Unit): Unit = {
    val run: Runnable = () =>
      try body
      catch { case _: IOException => () } // closed
    val thread = new Thread(run, "test-tap")
    thread.setDaemon(true)
    thread.start()
  }
}
